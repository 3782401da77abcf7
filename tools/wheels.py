"""Wheels for Linux on x86-64 and aarch64, with every instruction set inside, and a trial of them.

    python tools/wheels.py build               into dist/ (`make wheel`)
    python tools/wheels.py test WHEEL...       (`make test-wheel`)

`build` compiles with zig, which makes code for either machine and for an old C library, and brings the C++ library.
From Python 3.12 on one wheel serves all versions; older ones have a wheel each. `test` installs every wheel into new
environments, without a compiler, trains a tiny model there, and compares kernels and losses with the ordinary build's.

Interpreters are looked for on the path (`python3.10`), among pyenv's, and in PYTHONS, where one of the other machine
under an emulator can be named (tools/arm_python.sh makes one). Exit status 1 if a version has none to build with, or a
wheel none to run on: what did not run has not passed.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DIST, WORK = ROOT / "dist", ROOT / "build" / "wheels"
GLIBC = (2, 17)
VERSIONS = ((3, 10), (3, 11), (3, 12))
"""Versions of Python that wheels are built for. The last wheel uses the stable ABI and serves later versions too."""
FOLLOWING = ((3, 13), (3, 14))
SETS = {
    "x86_64": ["reference", "portable", "avx2", "avx512", "avx512bf16"],
    "aarch64": ["reference", "portable", "neon_bf16"],
}
"""What an emulator of all that a machine can do must find. A machine itself finds what the ordinary build does."""
TRIALS = (
    (
        "Linux x86-64, glibc 2.17 or later",
        "in a new environment, without a compiler: train on four rows, export, serve",
        "make wheel test-wheel",
    ),
    ("Linux aarch64, glibc 2.17 or later", "the same, under `qemu-aarch64`", "make wheel test-wheel"),
    ("Windows x86-64", "under wine 8: first steps, losses, gradients, tests", "make test-windows"),
    ("Windows ARM64", "its extension is linked; no wheel", "python -m tools.windows link"),
    ("macOS arm64 and x86-64", "not yet: the workflow of releases builds and tries them", ""),
    ("Linux with musl (Alpine)", "no wheel: compile it", ""),
    ("Android (Termux)", "no wheel: not tried", ""),
)
"""Platforms, how each is tried, and by which command. docs/install.md shows them."""


class Python:
    """An interpreter, by its name or path; CalledProcessError or OSError if it cannot run."""

    def __init__(self, program: str) -> None:
        ask = "import platform, sys; print(*sys.version_info[:2], platform.machine(), sys.executable)"
        told = subprocess.run([program, "-c", ask], check=True, capture_output=True, text=True).stdout
        major, minor, self.machine, self.program = told.rstrip("\n").split(" ", 3)
        self.version = (int(major), int(minor))

    def __str__(self) -> str:
        return f"Python {dotted(self.version)} on {self.machine}"

    def runs(self, wheel: Path) -> bool:
        """Whether the wheel, as its name says, is for this interpreter."""
        tag, abi, platforms = wheel.stem.split("-")[-3:]
        built_for = (int(tag[2]), int(tag[3:]))
        fits = self.version >= built_for if abi == "abi3" else self.version == built_for
        return fits and platforms.endswith(self.machine)


def main(action: str, *arguments: str) -> int:
    missing = build() if action == "build" else test([Path(name).resolve() for name in arguments])
    for line in missing:
        print(f"MISSING: {line}")
    return bool(missing)


def build() -> list[str]:
    """Build the wheels; what could not be built."""
    pythons = [python for python in interpreters() if python.machine == platform.machine()]
    compilers = {machine: write_compiler(machine, "Linux", f"linux-gnu.{dotted(GLIBC)}") for machine in SETS}
    missing = []
    for version in VERSIONS:
        able = [python for python in pythons if python.version == version]
        if able:
            for machine, compiler in compilers.items():
                build_wheel(able[0], machine, compiler)
        else:
            missing.append(f"wheels of Python {dotted(version)}: there is no python{dotted(version)} here")
    return missing


def write_compiler(machine: str, system: str, target: str) -> list[str]:
    """CMake's settings for zig, whose parts become programs under names of their own."""
    zig = Path(str(find_spec("ziglang").origin)).with_name("zig")  # type: ignore[union-attr]
    settings = [f"CMAKE_SYSTEM_NAME={system}", f"CMAKE_SYSTEM_PROCESSOR={machine}"]
    for variable, part in (
        ("CMAKE_CXX_COMPILER", f"c++ -target {machine}-{target}"),
        ("CMAKE_AR", "ar"),
        ("CMAKE_RANLIB", "ranlib"),
        ("CMAKE_RC_COMPILER", "rc"),
    ):
        program = WORK / system / machine / part.split()[0]
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec "{zig}" {part} "$@"\n')
        program.chmod(0o755)
        settings.append(f"{variable}={program}")
    return settings


def build_wheel(python: Python, machine: str, settings: Sequence[str]) -> None:
    """Build the wheel of this interpreter's version for a machine into DIST; CalledProcessError if a check finds fault.

    The headers are those of the interpreter's own machine: on 64-bit Linux they are the same in both. Debian's own
    Python has a folder of them for each machine, and builds for its own only.
    """
    name = f"{machine}-{dotted(python.version)}"
    raw, tools = WORK / f"raw-{name}", (sys.executable, "-m")
    shutil.rmtree(raw, ignore_errors=True)
    suffix = f".cpython-{dotted(python.version).replace('.', '')}-{machine}-linux-gnu.so"
    options = [f"-Cbuild-dir={WORK / name}", *(f"-Ccmake.define.{setting}" for setting in settings)]
    run(
        [*tools, "pip", "--python", python.program, "wheel", "-q", "--no-deps", "-w", raw, *options, ROOT],
        env=os.environ | {"SETUPTOOLS_EXT_SUFFIX": suffix},
    )
    run([*tools, "wheel", "tags", "--remove", "--platform-tag", f"linux_{machine}", *raw.glob("*.whl")])
    (wheel,) = raw.glob("*.whl")
    if "-abi3-" in wheel.name:
        run([*tools, "abi3audit", "--strict", wheel])
    run([*tools, "auditwheel", "repair", "--only-plat", "--plat", "auto", "-w", raw / "tagged", wheel])
    (tagged,) = (raw / "tagged").glob("*.whl")
    if f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}" not in tagged.name:
        raise SystemExit(f"{tagged.name}: it needs more than glibc {dotted(GLIBC)}")
    DIST.mkdir(exist_ok=True)
    tagged.replace(DIST / tagged.name)


def test(wheels: Sequence[Path]) -> list[str]:
    """Try the wheels; those that nothing here can run."""
    pythons = interpreters()
    ordinary = json.loads(output([sys.executable, "-m", "tests.wheel"]))
    print(f"ordinary build: {ordinary}")
    missing = [] if wheels else ["wheels: run `make wheel`"]
    for wheel in wheels:
        able = [python for python in pythons if python.runs(wheel)]
        for python in able:
            native = python.machine == platform.machine()
            expected = ordinary if native else ordinary | {"kernels": SETS[python.machine]}
            found = installed(wheel, python)
            print(f"{wheel.name}, {python}: {found}")
            if not agree(found, expected):
                raise SystemExit(f"{wheel.name}, {python}: expected {expected}")
        if not able:
            missing.append(f"a trial of {wheel.name}: no interpreter here runs it")
    return missing


def installed(wheel: Path, python: Python) -> dict[str, Any]:
    """What tests.wheel says of the wheel in a new environment, where programs are the environment's alone."""
    with TemporaryDirectory() as folder:
        programs = Path(folder, "bin")
        run([python.program, "-m", "venv", "--without-pip", folder])
        pip = [sys.executable, "-m", "pip", "--python", f"{programs}/python"]
        run([*pip, "install", "-q", "--only-binary", ":all:", f"{wheel}[serve]"])
        told: dict[str, Any] = json.loads(
            output([programs / "python", "-m", "tests.wheel"], {"PATH": str(programs), "HOME": folder})
        )
    return told


def agree(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-4) -> bool:
    """Whether versions, kernels and the studio's files are the same, and losses up to the order of float32 sums."""
    pairs = zip(found["losses"], expected["losses"], strict=True)
    same = all(found[fact] == expected[fact] for fact in ("version", "kernels", "page", "made"))
    return same and all(math.isclose(a, b, rel_tol=tolerance) for a, b in pairs)


def interpreters() -> list[Python]:
    """One for each version and machine: the first that is found and runs."""
    names = os.environ.get("PYTHONS", "").split()
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for version in map(dotted, VERSIONS + FOLLOWING):
        names += [f"python{version}", *map(str, pyenv.glob(f"{version}.*/bin/python{version}"))]
    found: dict[tuple[Any, str], Python] = {}
    for name in names:
        try:
            python = Python(name)
        except (OSError, subprocess.CalledProcessError):  # not there, or pyenv's word for a version that is not chosen
            continue
        found.setdefault((python.version, python.machine), python)
    return list(found.values())


def run(command: Sequence[str | Path], env: dict[str, str] | None = None) -> None:
    print("+", *command, flush=True)
    subprocess.run(command, check=True, cwd=ROOT, env=env)


def output(command: Sequence[str | Path], env: dict[str, str] | None = None) -> str:
    return subprocess.run(command, check=True, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True).stdout


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
