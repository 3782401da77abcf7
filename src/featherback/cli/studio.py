"""`featherback studio`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from featherback.core.terminal import say


def studio(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A model to offer besides those of the list: a path or a name."),
    ] = None,
    folder: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to open: its data files, models and runs can be used.")
    ] = Path(),
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Data to offer besides the files of the folder.")
    ] = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on. 127.0.0.1: this machine only.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="Port to listen on. 0: any.")] = 8123,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name by which browsers reach this machine.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
) -> None:
    """Open a page in the browser: choose a model and examples, train, watch, and talk to the result.

    The page needs no network. A run goes on if the page is closed or this command ends. Ctrl-C ends this command.

    Example: featherback studio
    """
    from featherback.web.extra import check_extra

    check_extra("studio")
    from dataclasses import replace

    from featherback.core.failure import sentence
    from featherback.core.terminal import print_error
    from featherback.web.guard import rules_for
    from featherback.web.server import address_of, listen, serve
    from featherback.web.studio.app import studio as opened
    from featherback.web.studio.workspace import Workspace

    def failed(error: BaseException) -> None:
        print_error(f"error: {sentence(error) or f'unexpected {type(error).__name__}: {error}'}")

    workspace = Workspace(folder, model, data)
    rules = replace(rules_for(host, frozenset(allow_host or ())), failed=failed)
    page = opened(workspace, rules)
    listener = listen(host, port)
    address = f"{address_of(listener)}/#key={page.key}"

    def started() -> None:
        say(f"Studio of {workspace.folder}: {address}\nCtrl-C ends it; runs go on.", flush=True)
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(page.app, listener, started)
