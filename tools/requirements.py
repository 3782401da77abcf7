"""Print what pyproject.toml requires, one requirement a line, for `pip install -r`.

python tools/requirements.py {build,package,EXTRA}...

`build` is what compiles the extension, `package` what Featherback needs to run, EXTRA the name of an extra. With this
list, pip installs packages before the extension is compiled, or while it is.
"""

from __future__ import annotations

import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def main(*groups: str) -> None:
    content = tomllib.loads(PROJECT.read_text(encoding="utf-8"))
    project = content["project"]
    known = {"build": content["build-system"]["requires"], "package": project["dependencies"]}
    known |= project["optional-dependencies"]
    print(*(line for group in groups for line in known[group]), sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
