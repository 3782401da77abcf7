"""The page of all options of training, from what the options say of themselves.

python tools/options_page.py > docs/options.md     (`make stub`)
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from featherback.core.options import flags
from featherback.runs.names import combined, default_of, grouped, known, python_names, python_type

HEAD = """\
# Options of training

<!-- Written by `make stub`. -->

These options are the same on the command line (`featherback train`), in Python (`featherback.train`) and in a file
for `--config`. Python and files write underscores for dashes; a name that differs otherwise is in brackets. Names of
other tools after *also* do the same.
"""


KINDS = {"int": "whole number", "float": "number", "bool": "switch"}


def main() -> None:
    print("\n".join([HEAD, *lines()]))


def lines() -> Iterator[str]:
    for title, fields in {"Result": ["out"], **grouped()}.items():
        yield f"## {title}\n\n| option | values | default | meaning |\n|---|---|---|---|"
        yield from map(row, fields)
        yield ""


def row(field: str) -> str:
    kind, about = known()[field][0], combined(field)
    flag, name = flags(kind, field)[0], python_names(field)[0]
    own = "" if name == flag.lstrip("-").replace("-", "_") else f" (`{name}`)"
    also = f" *Also* {', '.join(f'`{each}`' for each in about.aliases)}." if about.aliases else ""
    values = ", ".join(about.choices) or about.metavar or KINDS[python_type(field).removesuffix(" | None")]
    default = about.default_in_words or default_of(kind, field)
    shown = default if isinstance(default, (int, float, str)) and default is not False else ""
    return f"| `{flag}`{own} | {escaped(values)} | {escaped(str(shown))} | {escaped(about.meaning)}{also} |"


def escaped(text: str) -> str:
    """The text without Markdown, as a cell of a table."""
    return re.sub(r"([_*|<>])", r"\\\1", text)


if __name__ == "__main__":
    main()
