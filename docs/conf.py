"""The site that `make docs` builds of these pages. On a forge they are read as they are, without anything of this.

The navigation is the lists of links in `index.md` and in the `README.md` of a folder. Formulas are Unicode text in
both places, as in the code that they derive.
"""

from __future__ import annotations

import re
from pathlib import Path

from pygments.lexer import RegexLexer
from pygments.lexers.data import JsonLexer
from pygments.lexers.special import TextLexer
from pygments.token import Comment, String, Text
from sphinx.application import Sphinx

from featherback.version import __version__

HERE = Path(__file__).parent

project, author = "Featherback", "the authors of Featherback"
version = release = __version__
language = "en"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
smartquotes = False  # an option has two hyphens, and a message is looked up as it was said
highlight_language = "text"  # what names no language: formulas, and what a program prints
myst_heading_anchors = 4  # as a forge makes them

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"Tokens": "Tokens", "Examples": "Examples"}
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = "Featherback"
html_copy_source = html_show_sourcelink = html_show_copyright = html_show_sphinx = False
html_static_path = ["site"]
html_css_files = ["site.css"]
html_theme_options = {"top_of_page_buttons": []}

copybutton_selector = "div.highlight-sh pre, div.highlight-python pre, div.highlight-jsonl pre"

_LISTED = re.compile(r"^(?:- |\| )\[(.+?)\]\((\S+?)\.md\)", re.MULTILINE)


class Commands(RegexLexer):
    """A shell's lines. Words such as `export` are arguments here, and nothing else is worth a colour."""

    tokens = {"root": [(r"(?<!\S)#.*", Comment), (r"'[^']*'|\"[^\"]*\"", String), (r"\s+|[^\s'\"]+|.", Text)]}  # noqa: RUF012


def navigation(_: Sphinx, name: str, source: list[str]) -> None:
    """Give a page of links the tables of contents that they are, a section each, under its heading."""
    if name != "index" and not name.endswith("/README"):
        return
    whole = name != "index"
    sections = [("", source[0])] if whole else re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", source[0], re.MULTILINE)
    for caption, text in sections:
        if pages := _LISTED.findall(text):
            caption = f":caption: {caption}\n" if caption else ""
            listed = "\n".join(f"{title} <{page}>" for title, page in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n{caption}\n{listed}\n```\n"


def code_in_docstrings(*arguments: object) -> None:
    """`name` is code in our docstrings, as in Markdown; reStructuredText wants two of each."""
    lines = arguments[-1]
    assert isinstance(lines, list)
    lines[:] = [re.sub(r"(?<!`)`([^`]+)`(?!`)", r"``\1``", line) for line in lines]


def aliases(*arguments: object) -> tuple[str | None, ...]:
    """The signature with the names of our types, without what Sphinx puts around them."""
    return tuple(
        None if part is None else re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", str(part)) for part in arguments[-2:]
    )


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", navigation)
    app.connect("autodoc-process-docstring", code_in_docstrings)
    app.connect("autodoc-process-signature", aliases)
    for language, lexer in {"sh": Commands, "jsonl": JsonLexer, "csv": TextLexer, "tsv": TextLexer}.items():
        app.add_lexer(language, lexer)
