"""What may make a run wait: a machine on battery, or too hot, by the operating system's own sensors.

Linux: /sys/class/power_supply and /sys/class/thermal. macOS: `pmset -g batt`; heat is not to be had there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from featherback.core.naming import argument
from featherback.errors import FeatherbackError

SYSTEM = Path("/sys")
LOOK_SECONDS = 5.0
"""Seconds between looks: some sensors take milliseconds to read."""
_BEFORE_SHUTDOWN = 10.0  # °C below the temperature at which the kernel turns the machine off
_COOLER = 5.0  # °C below its limit a zone must be for the run to go on: no coming and going

Sensor = Callable[[], str | None]
"""Why to wait, in words, or None."""


class Sensors:
    """Those of `kinds` (keys of KINDS). FeatherbackError if this machine has none of a kind.

    `system`: where Linux shows its devices. `every`: seconds for which an answer holds.
    """

    def __init__(self, kinds: Collection[str] = (), system: Path = SYSTEM, every: float = LOOK_SECONDS) -> None:
        self._sensors = [KINDS[kind](system) for kind in kinds]
        self._every, self._next = every, 0.0
        self._reason: str | None = None

    def reason(self) -> str | None:
        """Why to wait now; None: nothing is in the way."""
        if self._sensors and time.monotonic() >= self._next:
            self._reason = next((said for sensor in self._sensors if (said := sensor())), None)
            self._next = time.monotonic() + self._every
        return self._reason


def battery(system: Path = SYSTEM) -> Sensor:
    """Whether the machine itself, not a mouse, is running on a battery."""
    if sys.platform == "darwin":
        return mac_battery()
    supplies = system / "class" / "power_supply"
    if not _batteries(supplies):
        raise FeatherbackError(
            f"{argument('pause_on', 'battery')} is not available: this machine shows no battery in {supplies}. "
            f"Leave battery out, or name {argument('pause_on', 'none')}."
        )

    def reason() -> str | None:
        if any(_read(supply / "online") == "1" for supply in _folders(supplies) if not _is_battery(supply)):
            return None
        drawn = any(_read(supply / "status") == "Discharging" for supply in _batteries(supplies))
        return "on battery" if drawn else None

    return reason


def mac_battery(ask: Callable[[], str] | None = None) -> Sensor:
    """The same on macOS. `ask`: what `pmset -g batt` prints."""
    ask = ask or _pmset
    if "Battery-" not in ask():  # "InternalBattery-0"
        raise FeatherbackError(
            f"{argument('pause_on', 'battery')} is not available: pmset shows no battery of this machine. "
            f"Leave battery out, or name {argument('pause_on', 'none')}."
        )
    return lambda: "on battery" if "'Battery Power'" in ask() else None


def heat(system: Path = SYSTEM) -> Sensor:
    """Whether a zone has reached the temperature at which the kernel slows the machine down.

    That is its lowest passive or hot trip point; where there is none, a little less than the critical one.
    """
    folder = system / "class" / "thermal"
    zones = {zone: limit for zone in _folders(folder) if (limit := _limit(zone)) is not None}
    if not zones:
        raise FeatherbackError(
            f"{argument('pause_on', 'heat')} is not available: this system shows no temperature with a limit in "
            f"{folder}. Leave heat out, or name {argument('pause_on', 'none')}."
        )
    hot: set[Path] = set()

    def reason() -> str | None:
        for zone, limit in zones.items():
            temperature = _degrees(zone / "temp")
            if temperature is None or temperature < limit - _COOLER:
                hot.discard(zone)
            elif temperature >= limit:
                hot.add(zone)
            if zone in hot:
                return f"too hot ({_read(zone / 'type')} at {temperature:.0f} °C, limit {limit:.0f} °C)"
        return None

    return reason


KINDS: dict[str, Callable[[Path], Sensor]] = {"battery": battery, "heat": heat}


def _pmset() -> str:
    import subprocess  # a training process elsewhere does without it

    try:
        return subprocess.run(["pmset", "-g", "batt"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""


def _batteries(supplies: Path) -> list[Path]:
    return [
        supply
        for supply in _folders(supplies)
        if _is_battery(supply) and _read(supply / "scope") != "Device"  # of a mouse or a headset
    ]


def _is_battery(supply: Path) -> bool:
    return _read(supply / "type") in ("Battery", "UPS")


def _limit(zone: Path) -> float | None:
    """The temperature of a zone at which to wait, in °C; None if it has none."""
    trips: dict[str, list[float]] = {}
    for file in zone.glob("trip_point_*_type"):
        degrees = _degrees(file.with_name(file.name.replace("_type", "_temp")))
        if degrees is not None and degrees > 0:  # points that are switched off are far below
            trips.setdefault(_read(file), []).append(degrees)
    if slowed := trips.get("passive", []) + trips.get("hot", []):
        return min(slowed)
    return min(trips["critical"]) - _BEFORE_SHUTDOWN if "critical" in trips else None


def _degrees(file: Path) -> float | None:
    try:
        return int(_read(file)) / 1000
    except ValueError:
        return None


def _folders(path: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(path.iterdir())
    return []


def _read(file: Path) -> str:
    """A line of the system's; empty if it cannot be read, as when the device has gone."""
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text(encoding="ascii").strip()
    return ""
