"""The house has few rooms, one above the other: imports point down, and no module imports itself by way of others.

What stands under TYPE_CHECKING counts as well: a reader follows it like any other import.
"""

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from featherback.core.system import PARTS
from tests.support.sources import parsed

PACKAGE = Path(__file__).parents[1] / "src" / "featherback"

FLOORS = (
    ("errors", "version"),
    ("core",),
    ("engine",),
    ("data",),
    ("nn",),
    ("models", "optim"),
    ("methods",),
    ("infer", "exports"),
    ("runs",),
    ("view", "model"),
    ("api", "worker", "web"),
    ("federated", "estimator"),
    ("cli",),
)
"""From the ground up. A room may import those on lower floors, and nothing of its neighbours."""

MOST_ROOMS, MOST_FLOORS = 14, 13


def test_imports_point_down() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in sorted(_graph(PACKAGE).items())
        if module not in ("featherback", "__main__")  # the public face brings in what it names, lazily
        for target in sorted(targets)
        if _room(module) != _room(target) and _floor(target) >= _floor(module)
    ]
    assert not wrong, "imports that point up or sideways:\n" + "\n".join(wrong)


def test_the_house_is_small() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    listed = {room for floor in FLOORS for room in floor}
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert listed == rooms | modules
    assert len(rooms) <= MOST_ROOMS
    assert len(FLOORS) <= MOST_FLOORS


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = _graph(PACKAGE)
    assert len(graph) > 100
    assert sum(map(len, graph.values())) > 300
    assert not _circles(graph), "modules that import each other: " + str(_circles(graph))


def test_benchmarks_do_not_import_each_other_in_circles() -> None:
    graph = _graph(PACKAGE.parents[1] / "benchmarks", "benchmarks")
    assert {"place", "results"} <= graph["measure"] | graph["memory"]
    assert not _circles(graph)


def test_the_scripts_of_the_studio_do_not_import_each_other_in_circles() -> None:
    scripts = PACKAGE / "web" / "studio" / "static"
    graph = {path.stem: set(re.findall(r' from "\./(\w+)\.js"', path.read_text())) for path in scripts.glob("*.js")}
    assert {"app", "dom"} <= graph["studio"]
    assert not _circles(graph)


def test_a_planted_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "f"}, "d": {"a", "e"}, "e": {"d"}, "f": set(), "g": {"g"}}
    assert _circles(graph) == [["a", "b", "c"], ["d", "e"], ["g"]]
    assert _circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imports_inside_functions_and_for_annotations_count(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, text in {
        "__init__": "from featherback.errors import Problem",
        "errors": "if TYPE_CHECKING:\n    from featherback.data import reader\nclass Problem: pass",
        "data/__init__": "from featherback.data.reader import read",
        "data/reader": "def read():\n    from featherback.data import text\n    import featherback.errors",
        "data/text": "import typing\nfrom featherback._native import Matrix",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    graph = _graph(tmp_path)
    assert graph == {
        "featherback": {"errors"},
        "errors": {"data.reader"},
        "data": {"data.reader"},
        "data.reader": {"data.text", "errors"},
        "data.text": set(),
    }
    assert _circles(graph) == [["data.reader", "errors"]]


def test_a_module_without_a_floor_is_noticed() -> None:
    with pytest.raises(AssertionError, match="attic has no floor"):
        _floor("attic.trunk")


MAPPING = "engine.formats.mapping"


def test_one_module_maps_files() -> None:
    """It does so under a guard, so that a file that another program truncates cannot end the process."""
    found = {_module_of(path) for path in PACKAGE.rglob("*.py") if _maps_files(path)}
    assert found == {MAPPING}


@pytest.mark.parametrize(
    "text",
    [
        "import mmap\nmmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)",
        "from mmap import mmap\nmmap(file, 10)",
        "import numpy as np\nnp.memmap(path)",
        "np.load(path, mmap_mode='r')",
        "from safetensors import safe_open",
        "from safetensors.numpy import load_file",
        "from numpy import memmap",
    ],
)
def test_a_planted_map_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.py").write_text(text)
    assert _maps_files(tmp_path / "a.py")
    (tmp_path / "a.py").write_text("import mmap\nmmap.mmap(-1, 10)\nnp.load(path)")
    assert not _maps_files(tmp_path / "a.py")


def _maps_files(path: Path) -> bool:
    """Whether a module maps files: anonymous memory, which `mmap(-1, ...)` is, does not count."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", None))
            if name == "mmap" and ast.unparse(node.args[0]) != "-1":
                return True
            if name == "memmap" or any(keyword.arg == "mmap_mode" for keyword in node.keywords):
                return True
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if "memmap" in names or (node.module or "").partition(".")[0] == "safetensors":
                return True
    return False


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


TORCH = PACKAGE / "engine" / "backend" / "torch_device"
"""The folder that may import torch: `engine.backend.use` imports it on request."""


def test_only_one_registry_names_devices() -> None:
    registry = PACKAGE / "engine" / "backend" / "__init__.py"
    named = {path for path in PACKAGE.rglob("*.py") if re.search(r"\b(cuda|xpu|mps|cpu-torch)\b", path.read_text())}
    assert {path for path in named if TORCH not in path.parents} == {registry}
    lines = [line for line in registry.read_text().splitlines() if re.search(r"\bcuda\b", line)]
    assert len(lines) == 1


def test_no_heavy_frameworks_in_the_package() -> None:
    heavy = {"torch", "triton", "transformers", "peft", "gguf"}
    found = [
        f"{path.name} imports {name}"
        for path in PACKAGE.rglob("*.py")
        for name in _top_level(path)
        if name in heavy and TORCH not in path.parents
    ]
    assert not found, found


def test_one_module_needs_the_library_of_tokenizers() -> None:
    assert [path.name for path in PACKAGE.rglob("*.py") if "tokenizers" in _top_level(path)] == ["library.py"]


SYSTEM_ASKED = ("core/system/__init__.py", "core/system/posix", "core/system/windows")
"""Where modules may ask which system this is. `core/system/__init__.py` chooses a folder of parts."""


def test_one_place_asks_which_system_this_is() -> None:
    asking = {
        path.relative_to(PACKAGE).as_posix(): found
        for path in PACKAGE.rglob("*.py")
        if (found := _asks_for_system(parsed(path)))
    }
    outside = {where: found for where, found in asking.items() if not where.startswith(SYSTEM_ASKED)}
    assert not outside, f"ask for the system outside core/system: {outside}"
    assert asking["core/system/__init__.py"] == ["os.name"]


def test_both_systems_have_the_same_parts() -> None:
    """And each part offers the same functions, with the same arguments."""
    for part in PARTS:
        posix, windows = (_offered(PACKAGE / "core" / "system" / system / f"{part}.py") for system in SYSTEMS)
        assert posix == windows, f"core/system/*/{part}.py differ"


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.name == 'nt'",
        "import sys\nif sys.platform.startswith('win'): pass",
        "import fcntl",
        "def f():\n    import resource",
        "from msvcrt import get_osfhandle",
        "import os\nhasattr(os, 'posix_fadvise')",
    ],
)
def test_a_planted_question_for_the_system_is_found(text: str) -> None:
    assert _asks_for_system(ast.parse(text))


SYSTEMS = ("posix", "windows")
_OF_ONE_SYSTEM = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "msvcrt", "winreg", "_winapi"}


def _asks_for_system(module: ast.Module) -> list[str]:
    """Return what a module asks the operating system's name with, and the modules that only one system has."""
    found = []
    for node in ast.walk(module):
        words = ""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            words = f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr":
            words = ast.unparse(node)
        if words in ("os.name", "sys.platform") or words.startswith("hasattr(os, 'posix"):
            found.append(words)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in _OF_ONE_SYSTEM]
        elif isinstance(node, ast.ImportFrom) and node.module in _OF_ONE_SYSTEM:
            found.append(node.module)
    return found


def _offered(path: Path) -> dict[str, str]:
    """Return the public names of a module and the arguments of its functions and of its classes' methods."""
    found = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = ast.unparse(node.args)
        elif isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            found |= {f"{node.name}.{each.name}": ast.unparse(each.args) for each in methods if _is_public(each.name)}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [node for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
            found |= {each.id: "" for each in names}
    return {name: arguments for name, arguments in found.items() if _is_public(name)}


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name == "__init__"


def _room(module: str) -> str:
    return module.split(".")[0]


def _floor(module: str) -> int:
    """Where a module stands."""
    found = [number for number, rooms in enumerate(FLOORS) if _room(module) in rooms]
    assert found, f"{_room(module)} has no floor"
    return found[0]


def _graph(package: Path, called: str = "featherback") -> dict[str, set[str]]:
    """Module -> modules of the package that it imports, anywhere in it; a folder's name stands for its __init__."""
    return {_name(package, path): _imports(path, package, called) for path in package.rglob("*.py")}


def _circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, or themselves, directly or by way of others."""
    reached = {module: _reached(graph, module) for module in graph}
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached.get(other, ())))
        for module in graph
        if module in reached[module]
    }
    return sorted(map(list, groups))


def _reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Every module that `start` imports, directly or by way of others."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


def _name(package: Path, path: Path) -> str:
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "featherback"


def _imports(path: Path, package: Path, called: str) -> set[str]:
    """Modules of the package that a file imports, relative to the package, which is `called` so in imports."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == called:
            base = node.module.removeprefix(called).lstrip(".")
            for alias in node.names:
                candidate = f"{base}.{alias.name}" if base else alias.name
                place = package / Path(*candidate.split("."))
                is_module = any(place.with_suffix(suffix).exists() for suffix in (".py", ".pyi")) or place.is_dir()
                found.add(candidate if is_module else base)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            found.update(name.removeprefix(f"{called}.") for name in names if name.startswith(f"{called}."))
    return {name for name in found if name and not name.startswith("_native")}


def _top_level(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names
