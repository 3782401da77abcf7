"""The help: one page of all commands, and of each command `--help`, one screen, and `--help-all`."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING

from featherback.cli.parameters import Parameter

Row = tuple[str, str]
"""The two columns of a line: names, and their meaning."""

_MOST = 78
"""Maximum width of the page."""
_WIDEST = 26
"""Maximum width of the left column. The description of a longer option starts below it."""
GENERAL: Mapping[str, str] = {
    "-V, --version": "Show the version.",
    "--debug": "Show the traceback of an error. Works with every command.",
    "--install-completion": "Install completion for the current shell: bash, zsh or fish.",
    "--show-completion": "Show the script of the completion.",
    "-h, --help": "Show this page.",
}
_HELP: Mapping[tuple[bool, bool], Row] = {
    (False, True): ("--help-all", "Show all options"),
    (True, True): ("-h, --help", "Show the most needed options."),
    (True, False): ("-h, --help, --help-all", "Show this help."),
}
"""(all options are shown, there is a shorter help) -> the last line of the help."""


def page_of_all(text: str, commands: Mapping[str, str]) -> str:
    """Return the help of `featherback`: its text, and the docstrings of the commands."""
    rows = {name: inspect.cleandoc(doc).split("\n\n")[0].replace("\n", " ") for name, doc in commands.items()}
    firsts = {name: text.partition(". ")[0].rstrip(".") + "." for name, text in rows.items()}
    sections = {"Options": list(GENERAL.items()), "Commands": list(firsts.items())}
    return "\n".join(_page("featherback COMMAND [OPTIONS]", text, sections))


def page(
    name: str, text: str, parameters: Sequence[Parameter], short: Mapping[str, Sequence[str]], everything: bool
) -> str:
    """Return the help of a command. `text`: its docstring. `short`: title -> the options that most people need."""
    everything = everything or not short
    named = {each.name: each for each in parameters}
    if everything:
        titles = dict.fromkeys(each.group for each in parameters)
        sections = {title: [_row(each) for each in parameters if each.group == title] for title in titles}
    else:
        sections = {title: [_row(named[each], brief=True) for each in names] for title, names in short.items()}
    arguments = [each.metavar for each in parameters if not each.flags]
    usage = " ".join(["featherback", name, *arguments, "[OPTIONS]"])
    return "\n".join(_page(usage, text, {**sections, "Help": [_HELP[everything, bool(short)]]}))


def _page(usage: str, text: str, sections: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    width = min(shutil.get_terminal_size().columns - 2, _MOST)
    yield f"Usage: {usage}"
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        yield ""
        is_example = paragraph.startswith("Example:")  # which is not wrapped
        lines = paragraph.splitlines() if is_example else textwrap.wrap(paragraph, width - 2, break_on_hyphens=False)
        yield from (f"  {line}" for line in lines)
    widest = min(_WIDEST, max(len(left) for rows in sections.values() for left, _ in rows))
    for title, rows in sections.items():
        yield f"\n{title}:"
        yield from _lines(rows, widest, width)


def _lines(rows: Iterable[Row], widest: int, width: int) -> Iterator[str]:
    """Yield the lines of a section. A left column of this width has the meaning beside it, a wider one below it."""
    indent = " " * (widest + 4)
    for left, meaning in rows:
        lines = textwrap.wrap(meaning, width - len(indent), break_on_hyphens=False) or [""]
        yield f"  {left}" if len(left) > widest else f"  {left:<{widest}}  {lines.pop(0)}".rstrip()
        yield from (indent + line for line in lines)


def _row(parameter: Parameter, brief: bool = False) -> Row:
    """The name of an option with the form of its value, and its meaning with its default."""
    about = parameter.about
    default = about.default_in_words or parameter.default
    if parameter.is_switch:
        default = parameter.flags[0] if default is True else None
    brief = brief and about.brief is not None
    meaning = (about.brief if brief else about.meaning) or ""
    if about.aliases and not brief:
        meaning = f"{meaning.rstrip('.')}. Also: {', '.join(about.aliases)}."
    if not (default is None or default is MISSING or default == ()):
        meaning += f" (default: {default})" if brief else f" Default: {default}."
    form = parameter.metavar
    if len(form) > _WIDEST and "|" in form:
        form, meaning = "NAME", f"{meaning} One of: {form.replace('|', ', ')}."
    return f"{'/'.join(parameter.flags)} {form}".strip(), meaning
