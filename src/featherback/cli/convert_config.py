"""`featherback convert-config`"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from featherback.core.options import option
from featherback.core.terminal import quoted, say
from featherback.errors import FeatherbackError

WITHOUT_BUDGET = "reads a file of options and writes another"
"""Why the command has no memory budget, as docs/memory.md says it."""
_WANTED = {"model": "MODEL", "data": "FILE", "out": "DIR"}
"""Options that every run needs -> what stands for their values."""


def convert_config(
    file: Path = option(
        positional=True,
        metavar="FILE",
        help="A file of Axolotl, LLaMA-Factory, mlx-lm or TRL, or a program with Unsloth.",
    ),
    out: Path = option(Path("run.yaml"), metavar="FILE", help="The file to write."),
    force: bool = option(False, help="Replace an existing file."),
) -> None:
    """Translate another tool's configuration into an option file for `train --config`.

    Example: featherback convert-config axolotl.yml --out run.yaml

    The command lists what became of each option. It runs no program.
    """
    from featherback.core.files import write_bytes
    from featherback.runs.configs import convert
    from featherback.runs.run_file import read, render_options

    if str(out) == "-":
        raise FeatherbackError("--out is '-'; it must be a file, such as run.yaml.")
    if out.exists() and not force:
        raise FeatherbackError(f"{out} already exists; choose another --out, or replace it with --force.")
    found = convert(file)
    write_bytes(out, render_options(found.values, f"Translated from {file.name} ({found.title}).").encode())
    say(f"{file} is a configuration of {found.title}.")
    translated = {
        key: ", ".join(f"{name}: {value}" for name, value in options.items())
        for key, options in found.translated.items()
    }
    _list("Translated", translated)
    _list("Not needed", found.unneeded)
    _list("NOT TRANSLATED: these change what is learned", found.lacking)
    say(f"\n{out} is written. Options that it does not have are Featherback's defaults.")
    missing = [name for name in _WANTED if name not in found.values]
    read(out).config({name: value for name, value in _WANTED.items() if name in ("model", *missing)})
    words = ["--config", str(out)]
    words += [word for name in missing if name != "model" for word in (f"--{name}", _WANTED[name])]
    say(f"next: {quoted('featherback', 'train', *(['MODEL'] if 'model' in missing else []), *words)}")


def _list(title: str, entries: Mapping[str, str]) -> None:
    """Print a title and the entries below it, if there are any."""
    if entries:
        say(f"\n{title}:")
        width = min(28, max(map(len, entries)))
        for name, text in entries.items():
            say(f"  {name:{width}}  {text}")
