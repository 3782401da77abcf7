"""Battery and heat sensors with a fake /sys."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from featherback.engine.host.sensors import Sensors, battery, heat
from featherback.errors import FeatherbackError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these are Linux's files")

MAINS = {"type": "Mains", "online": "1"}
CELL = {"type": "Battery", "status": "Charging"}


def device(root: Path, kind: str, name: str, files: Mapping[str, str]) -> Path:
    """Make a device in a fake /sys."""
    folder = root / "class" / kind / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (folder / file).write_text(f"{content}\n")
    return folder


def zone(root: Path, name: str = "thermal_zone0", temp: int = 40_000, **trips: int) -> Path:
    """Make a thermal zone with these trip points, in thousandths of a degree."""
    points = {}
    for number, (kind, at) in enumerate(trips.items()):
        points |= {f"trip_point_{number}_type": kind, f"trip_point_{number}_temp": str(at)}
    return device(root, "thermal", name, {"type": "x86_pkg_temp", "temp": str(temp), **points})


@pytest.mark.parametrize(
    ("mains", "cell", "waits"),
    [
        ({}, {}, False),
        ({"online": "0"}, {"status": "Discharging"}, True),
        ({"online": "1"}, {"status": "Discharging"}, False),  # a weak charger
        ({"online": "0"}, {"status": "Full"}, False),
        ({"online": "0"}, {"status": "Unknown"}, False),
        ({"online": "0", "type": "USB"}, {"status": "Discharging"}, True),
        ({"online": "1", "type": "USB"}, {"status": "Discharging"}, False),
        ({"online": "0"}, {"status": "Discharging", "type": "UPS"}, True),
    ],
)
def test_on_battery(tmp_path: Path, mains: Any, cell: Any, waits: bool) -> None:
    device(tmp_path, "power_supply", "AC", MAINS | mains)
    device(tmp_path, "power_supply", "BAT0", CELL | cell)
    assert battery(tmp_path)() == ("on battery" if waits else None)


def test_a_mouse_is_no_battery_of_the_machine(tmp_path: Path) -> None:
    device(tmp_path, "power_supply", "hidpp_battery_0", CELL | {"scope": "Device", "status": "Discharging"})
    with pytest.raises(FeatherbackError, match="--pause-on battery is not available: this machine reports no"):
        battery(tmp_path)
    device(tmp_path, "power_supply", "BAT0", CELL)
    assert battery(tmp_path)() is None


def test_a_battery_that_is_taken_out_does_not_hold_the_run(tmp_path: Path) -> None:
    cell = device(tmp_path, "power_supply", "BAT0", CELL | {"status": "Discharging"})
    asked = battery(tmp_path)
    assert asked() == "on battery"
    (cell / "status").unlink()
    assert asked() is None


def test_heat_waits_at_the_kernels_limit_until_it_is_cooler(tmp_path: Path) -> None:
    hot = zone(tmp_path, active=50_000, critical=105_000, passive=90_000, hot=95_000)
    asked = heat(tmp_path)
    found = []
    for temperature in (60_000, 89_900, 90_000, 86_000, 85_000, 84_900, 89_000, 91_000):
        (hot / "temp").write_text(f"{temperature}\n")
        found.append(asked())
    wait = "too hot (x86_pkg_temp at {} °C, limit 90 °C)"
    cool = [None, None, None]
    assert found == [None, None, *map(wait.format, (90, 86, 85)), *cool[:2], wait.format(91)]


def test_where_only_the_critical_point_is_known_it_waits_before(tmp_path: Path) -> None:
    zone(tmp_path, "thermal_zone1", passive=-274_000, hot=0)  # switched off
    only = zone(tmp_path, critical=100_000, temp=89_000)
    asked = heat(tmp_path)
    assert asked() is None
    (only / "temp").write_text("90000")
    assert asked() == "too hot (x86_pkg_temp at 90 °C, limit 90 °C)"
    (only / "temp").unlink()
    assert asked() is None


@pytest.mark.parametrize("made", ["nothing", "no points", "points switched off", "damaged"])
def test_without_a_limit_heat_is_not_available(tmp_path: Path, made: str) -> None:
    if made == "no points":
        zone(tmp_path)
    elif made == "points switched off":
        zone(tmp_path, passive=-32_768_000)
    elif made == "damaged":
        zone(tmp_path, passive=90_000).joinpath("trip_point_0_temp").write_bytes(b"\xff\n")
    with pytest.raises(FeatherbackError, match="--pause-on heat is not available: this system reports no temp"):
        heat(tmp_path)


def test_macos() -> None:
    from featherback.core.system.posix.machine import _mac_battery

    text = "Now drawing from '{}'\n -InternalBattery-0 (id=4522083)\t87%; discharging; 5:10 remaining\n"
    source = "AC Power"
    asked = _mac_battery(lambda: text.format(source))
    assert not asked()
    source = "Battery Power"
    assert asked()
    with pytest.raises(LookupError, match="pmset shows no battery in this machine"):
        _mac_battery(lambda: "Now drawing from 'AC Power'\n")


def test_an_answer_holds_for_a_while(tmp_path: Path) -> None:
    cell = device(tmp_path, "power_supply", "BAT0", CELL | {"status": "Discharging"})
    held, eager = Sensors(("battery",), tmp_path, every=3600), Sensors(("battery",), tmp_path, every=0)
    assert held.reason() == eager.reason() == "on battery"
    (cell / "status").write_text("Charging")
    assert held.reason() == "on battery"
    assert eager.reason() is None


def test_no_kinds_no_reason(tmp_path: Path) -> None:
    assert Sensors((), tmp_path).reason() is None
