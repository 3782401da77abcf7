"""`featherback studio`"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from threading import Thread

from featherback.cli.options import ALLOW_HOST, HOST, port_option
from featherback.core.options import option
from featherback.core.system import processes
from featherback.core.terminal import print_error, say

WITHOUT_BUDGET = "loads no model; each run, and each chat, is a process with its own budget"
"""Why the command has no memory budget, as docs/memory.md says it."""


def studio(
    model: str | None = option(
        None,
        positional=True,
        metavar="MODEL",
        help="A model to choose besides those that the page lists: a path or a name.",
    ),
    data: Path | None = option(None, metavar="FILE", help="Examples to choose besides the files of the opened folder."),
    folder: Path = option(
        Path(),
        metavar="FOLDER",
        help="The folder to open. The page can use its models, data and runs, and writes new runs there.",
        shown_default="the current one",
    ),
    browser: bool = option(True, negatable=True, help="Open the page in the browser, or only print its address."),
    host: str = HOST,
    port: int = port_option(8010),
    allow_host: list[str] | None = ALLOW_HOST,
) -> None:
    """Open a page in the browser: choose a model and examples, train, watch, and chat with the result.

    Example: featherback studio

    The page needs no network. Ctrl-C ends this command; a run that is being trained goes on.
    """
    from featherback.web import check_extra

    check_extra("studio")
    from webbrowser import open as open_page

    from featherback.web.guard import rules_for
    from featherback.web.server import address_of, listen, serve
    from featherback.web.studio.app import studio as opened
    from featherback.web.studio.workspace import Workspace

    workspace = Workspace(folder, model, data)
    rules = rules_for(host, frozenset(name.lower() for name in allow_host or ()))
    page = opened(workspace, replace(rules, failed=lambda error: print_error(f"error: {error!r}. This is a bug.")))
    with listen(host, port) as listener:
        address = f"{address_of(listener)}/#key={page.key}"

        def greet() -> None:
            say(f"studio of {workspace.folder}: {address}\nCtrl-C ends it; runs go on.", flush=True)
            if browser and processes.has_screen():
                Thread(target=open_page, args=(address,), daemon=True).start()  # some browsers return when they end

        serve(page.app, listener, greet)
