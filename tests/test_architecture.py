"""Imports point one way: down the list below, never up, and never in a circle, not even among neighbours."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "featherback"

# From the ground up. A module may import its own folder and those that stand before it.
ORDER = (
    "version",
    "errors",
    "naming",
    "terminal",
    "options",
    "registry",
    "failure",
    "private",
    "signals",
    "files",
    "hub.cache",
    "noise",
    "weights",
    "kernels",
    "backend",
    "host",
    "architecture",
    "parameters",
    "data",
    "layers",
    "families",
    "models",
    "hub",
    "demo",
    "optim",
    "adapters",
    "whole",
    "targets",
    "memory",
    "methods",
    "inference",
    "training",
    "model",
    "exporting",
    "api",
    "cli",
)


def test_imports_point_down() -> None:
    wrong = []
    seen = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        if module in ("__init__", "__main__"):
            continue  # the public face brings in what it names, lazily
        for target in _imports(path):
            seen += 1
            if _floor(target) > _floor(module):
                wrong.append(f"{module} imports {target}")
    assert seen > 100
    assert not wrong, "imports that point up:\n" + "\n".join(wrong)


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = _graph(PACKAGE)
    assert len(graph) > 100
    assert sum(map(len, graph.values())) > 300
    assert not _circles(graph), "modules that import each other: " + str(_circles(graph))


def test_a_planted_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "f"}, "d": {"a", "e"}, "e": {"d"}, "f": set(), "g": {"g"}}
    assert _circles(graph) == [["a", "b", "c"], ["d", "e"], ["g"]]
    assert _circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_imports_inside_functions_count_and_those_for_annotations_do_not(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, text in {
        "__init__": "from featherback.errors import Problem",
        "errors": "if TYPE_CHECKING:\n    from featherback.data import reader\nclass Problem: pass",
        "data/__init__": "from featherback.data.reader import read",
        "data/reader": "def read():\n    from featherback.data import text\n    import featherback.errors",
        "data/text": "import typing\nif typing.TYPE_CHECKING:\n    import featherback.data.reader\n"
        "else:\n    import featherback.errors",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    graph = _graph(tmp_path)
    assert graph == {
        "featherback": {"errors"},
        "errors": set(),
        "data": {"data.reader"},
        "data.reader": {"data.text", "errors"},
        "data.text": {"errors"},
    }
    (tmp_path / "data" / "text.py").write_text("def late():\n    from featherback.data.reader import read")
    assert _circles(_graph(tmp_path)) == [["data.reader", "data.text"]]


def test_no_heavy_frameworks_in_the_package() -> None:
    heavy = {"torch", "transformers", "peft", "gguf"}
    found = [
        f"{path.name} imports {name}" for path in PACKAGE.rglob("*.py") for name in _top_level(path) if name in heavy
    ]
    assert not found, found


def _floor(module: str) -> int:
    """Where a module stands; the most specific entry counts."""
    for index, name in sorted(enumerate(ORDER), key=lambda entry: -len(entry[1])):
        if module == name or module.startswith(name + "."):
            return index
    raise AssertionError(f"{module} has no place in ORDER")


def _graph(package: Path) -> dict[str, set[str]]:
    """Module -> modules of the package that it imports when it runs; a folder's name stands for its __init__."""
    return {_name(package, path): _imports(path, package, annotations=False) for path in package.rglob("*.py")}


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


def _imports(path: Path, package: Path = PACKAGE, annotations: bool = True) -> set[str]:
    """Modules of the package that a file imports, anywhere in it, relative to the package.

    `annotations`: those under TYPE_CHECKING too, which never run.
    """
    found = set()
    for node in _nodes(ast.parse(path.read_text()), annotations):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "featherback":
            base = node.module.removeprefix("featherback").lstrip(".")
            for alias in node.names:
                candidate = f"{base}.{alias.name}" if base else alias.name
                place = package / Path(*candidate.split("."))
                found.add(candidate if place.with_suffix(".py").exists() or place.is_dir() else base)
        elif isinstance(node, ast.Import):
            found.update(
                alias.name.removeprefix("featherback.") for alias in node.names if alias.name.startswith("featherback.")
            )
    return {name for name in found if name and not name.startswith("_native")}


def _nodes(tree: ast.AST, annotations: bool) -> Iterator[ast.AST]:
    """Every node of a tree; without `annotations`, not what stands under `if TYPE_CHECKING`."""
    ahead = [tree]
    while ahead:
        node = ahead.pop()
        yield node
        if not annotations and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            ahead += node.orelse
        else:
            ahead += ast.iter_child_nodes(node)


def _top_level(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names
