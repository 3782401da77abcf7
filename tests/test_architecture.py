"""Imports point one way: down the list below, never up, and never in a circle."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "featherback"

# From the ground up. A module may import its own folder and those that stand before it.
ORDER = (
    "version",
    "errors",
    "failure",
    "files",
    "noise",
    "weights",
    "kernels",
    "models",
    "data",
    "hub",
    "demo",
    "memory.arena",
    "host",
    "adapters.shapes",
    "memory",
    "adapters",
    "backprop",
    "methods",
    "optim",
    "training",
    "inference",
    "bench",
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


def test_no_heavy_frameworks_in_the_package() -> None:
    heavy = {"torch", "transformers", "peft", "gguf"}
    found = [
        f"{path.name} imports {name}"
        for path in PACKAGE.rglob("*.py")
        if "bench" not in path.parts  # compares with them, in processes of their own
        for name in _top_level(path)
        if name in heavy
    ]
    assert not found, found


def _floor(module: str) -> int:
    """Where a module stands; the most specific entry counts."""
    for index, name in sorted(enumerate(ORDER), key=lambda entry: -len(entry[1])):
        if module == name or module.startswith(name + "."):
            return index
    raise AssertionError(f"{module} has no place in ORDER")


def _imports(path: Path) -> set[str]:
    """Modules of the package that a file imports, anywhere in it, relative to the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("featherback"):
            base = node.module.removeprefix("featherback").lstrip(".")
            for alias in node.names:
                candidate = f"{base}.{alias.name}" if base else alias.name
                is_module = (PACKAGE / Path(*candidate.split("."))).with_suffix(".py").exists() or (
                    PACKAGE / Path(*candidate.split("."))
                ).is_dir()
                found.add(candidate if is_module else base)
        elif isinstance(node, ast.Import):
            found.update(
                alias.name.removeprefix("featherback.")
                for alias in node.names
                if alias.name.startswith("featherback.")
            )
    return {name for name in found if name and name != "_native"}


def _top_level(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names
