"""Sensors that can make a run pause: battery power and heat, as the operating system reports them.

Linux: /sys/class/power_supply and /sys/class/thermal. macOS and Windows: the system's own word on the battery, and no
heat.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from featherback.core.naming import argument
from featherback.core.system import machine
from featherback.errors import FeatherbackError

SYSTEM = Path("/sys")
LOOK_SECONDS = 5.0
"""Seconds between readings, because some sensors take milliseconds."""
_BEFORE_SHUTDOWN = 10.0  # °C below the temperature at which the kernel turns the machine off
_COOLER = 5.0  # °C below its limit that a zone must reach before the run goes on, so that it does not flicker

Sensor = Callable[[], str | None]
"""Returns why the run must pause, in words, or None."""


class Sensors:
    """The sensors of the given `kinds` (keys of KINDS). Raises FeatherbackError if this machine lacks one.

    `system`: where Linux shows its devices. `every`: seconds for which a reading is valid.
    """

    def __init__(self, kinds: Collection[str] = (), system: Path = SYSTEM, every: float = LOOK_SECONDS) -> None:
        self._sensors = [KINDS[kind](system) for kind in kinds]
        self._every, self._next = every, 0.0
        self._reason: str | None = None

    def reason(self) -> str | None:
        """Return why the run must pause now, or None."""
        if self._sensors and time.monotonic() >= self._next:
            self._reason = next((said for sensor in self._sensors if (said := sensor())), None)
            self._next = time.monotonic() + self._every
        return self._reason


def battery(system: Path = SYSTEM) -> Sensor:
    """Return a sensor that says whether the machine runs on battery. Batteries of mice and the like do not count."""
    try:
        ask = machine.on_battery()
    except LookupError as error:
        raise FeatherbackError(
            f"{argument('pause_on', 'battery')} is not available: {error}. "
            f"Remove battery, or use {argument('pause_on', 'none')}."
        ) from None
    if ask is not None:
        return lambda: "on battery" if ask() else None
    supplies = system / "class" / "power_supply"
    if not _batteries(supplies):
        raise FeatherbackError(
            f"{argument('pause_on', 'battery')} is not available: this machine reports no battery in {supplies}. "
            f"Remove battery, or use {argument('pause_on', 'none')}."
        )

    def reason() -> str | None:
        if any(_read(supply / "online") == "1" for supply in _folders(supplies) if not _is_battery(supply)):
            return None
        drawn = any(_read(supply / "status") == "Discharging" for supply in _batteries(supplies))
        return "on battery" if drawn else None

    return reason


def heat(system: Path = SYSTEM) -> Sensor:
    """Return a sensor that says whether a zone has reached the temperature at which the kernel slows the machine down.

    That is its lowest passive or hot trip point, or, if it has none, a little less than the critical one.
    """
    folder = system / "class" / "thermal"
    zones = {zone: limit for zone in _folders(folder) if (limit := _limit(zone)) is not None}
    if not zones:
        raise FeatherbackError(
            f"{argument('pause_on', 'heat')} is not available: this system reports no temperature sensor "
            f"with a limit in {folder}. Remove heat, or use {argument('pause_on', 'none')}."
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


def _batteries(supplies: Path) -> list[Path]:
    return [
        supply
        for supply in _folders(supplies)
        if _is_battery(supply) and _read(supply / "scope") != "Device"  # the battery of a mouse or a headset
    ]


def _is_battery(supply: Path) -> bool:
    return _read(supply / "type") in ("Battery", "UPS")


def _limit(zone: Path) -> float | None:
    """Return the temperature of a zone at which to pause, in °C, or None if it has none."""
    trips: dict[str, list[float]] = {}
    for file in zone.glob("trip_point_*_type"):
        degrees = _degrees(file.with_name(file.name.replace("_type", "_temp")))
        if degrees is not None and degrees > 0:  # disabled trip points are far below zero
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
    """Return a line of a system file, or "" if it cannot be read, for example because the device has gone."""
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text(encoding="ascii").strip()
    return ""
