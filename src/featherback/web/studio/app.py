"""The studio's app: the files of the page, and the requests that the page sends.

The files of the page hold nothing private and need no key. All other requests need the key of this start, which is in
the fragment of the address that the command prints. Browsers do not send fragments, so no log has the key.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from featherback.core.decode import decode
from featherback.core.private import temporary_name
from featherback.data.preview import Preview
from featherback.data.report import PrepareReport
from featherback.errors import FeatherbackError, excerpt
from featherback.exports import FORMATS
from featherback.models.hub.catalogue import CATALOGUE
from featherback.runs.record import Part, TokenCounts
from featherback.runs.samples import ANSWER
from featherback.version import __version__
from featherback.view.report import escape_with_small_tokens
from featherback.view.report.chart import COLOURS, STYLE
from featherback.web.guard import Rules, guarded
from featherback.web.refusal import HANDLERS, RefusedError
from featherback.web.studio import settings, watching
from featherback.web.studio.commands import Command, Runner, path_word
from featherback.web.studio.goals import PROGRAMS
from featherback.web.studio.runs import Starts, resume_command
from featherback.web.studio.talking import Talks, asked_of, chat_shown
from featherback.web.studio.workspace import OWN, UPLOAD_BYTES, Workspace

STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_EXAMPLES = 20
_MOST_SAMPLES = 50


@dataclass(frozen=True)
class Opened:
    """The app, and the key that requests of the page must have."""

    app: ASGIApp
    key: str


def studio(workspace: Workspace, rules: Rules) -> Opened:
    """Return the guarded app of a workspace. `rules`: of the server; the key is made here."""
    key = secrets.token_urlsafe(32)
    requests = _Requests(workspace)
    with_key = replace(rules, key=key, uploads={"/api/upload": UPLOAD_BYTES})
    api = Starlette(routes=requests.routes(), exception_handlers=HANDLERS)
    app = Starlette(
        routes=[
            Mount("/api", guarded(api, with_key)),
            Mount("/", guarded(Starlette(routes=_pages(), exception_handlers=HANDLERS), rules)),
        ]
    )
    return Opened(app, key)


def _pages() -> list[Route]:
    """Return a route for each file of the page."""
    found = [Route(f"/{path.name}", partial(_file, path)) for path in sorted(STATIC.iterdir()) if path.suffix in _TYPES]
    return [Route("/", partial(_file, STATIC / "index.html")), Route("/charts.css", _charts), *found]


async def _file(path: Path, request: Request) -> Response:
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache"}
    return FileResponse(path, media_type=_TYPES[path.suffix], headers=headers)


async def _charts(request: Request) -> Response:
    """Return the colours and strokes of the charts, which are the report's."""
    return Response(COLOURS + STYLE, media_type="text/css", headers={"Cache-Control": "no-cache"})


class _Requests:
    """The requests of the page. Each answers with JSON; errors are sentences."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace, self._starts = workspace, Starts(workspace)
        self._runner, self._talks = Runner(workspace.folder), Talks(workspace.folder)

    def routes(self) -> list[Route]:
        """Return the routes, without the prefix of the app."""
        run = "/runs/{name:path}"
        return [
            Route("/start", self.start),
            Route("/models", self.models),
            Route("/fetch", self.fetch, methods=["POST"]),
            Route("/files", self.files),
            Route("/upload", self.upload, methods=["POST"]),
            Route("/examples", self.examples, methods=["POST"]),
            Route("/command", self.command, methods=["POST"]),
            Route("/forecast", self.forecast, methods=["POST"]),
            Route("/runs", self.runs),
            Route("/runs", self.train, methods=["POST"]),
            Route("/compare", self.compare, methods=["POST"]),
            Route("/chat", self.chat, methods=["POST"]),
            Route("/chat/stop", self.stop_chat, methods=["POST"]),
            Route("/export", self.export, methods=["POST"]),
            Route(f"{run}/stop", self.stop, methods=["POST"]),
            Route(f"{run}/resume", self.resume, methods=["POST"]),
            Route(f"{run}/samples", self.samples, methods=["POST"]),
            Route(run, self.run),
        ]

    async def start(self, request: Request) -> Response:
        """Return what does not change: the folder, the form of options, the targets of an export."""
        return JSONResponse(
            {
                "version": __version__,
                **self._workspace.to_json(),
                "questions": settings.questions(),
                "form": settings.form(),
                "targets": [_target(name) for name in FORMATS.names],
                "answer_tokens": ANSWER,
            }
        )

    async def models(self, request: Request) -> Response:
        """Return the models that can be chosen. `?anew=1` looks again."""
        anew = "anew" in request.query_params or request.method == "POST"
        found = await run_in_threadpool(self._workspace.models, anew)
        return JSONResponse(
            [{**asdict(each), "can_fetch": each.name in CATALOGUE and each.path is None} for each in found]
        )

    async def fetch(self, request: Request) -> Response:
        """Download a model of the catalogue."""
        name = (await _body(request)).get("model")
        if name not in CATALOGUE:
            raise RefusedError(f"{excerpt(name)} is not a model that can be downloaded here.", param="model")
        await self._runner.output_of("fetch", Command.of("fetch", name))
        return await self.models(request)

    async def files(self, request: Request) -> Response:
        """Return the data files that can be chosen."""
        return JSONResponse(await run_in_threadpool(self._workspace.files_json))

    async def upload(self, request: Request) -> Response:
        """Store a data file. Its name is in the header X-Name, encoded as in an address."""
        name = unquote(request.headers.get("x-name", ""))
        path = await self._workspace.save(name, request.stream())
        return JSONResponse({"path": path})

    async def examples(self, request: Request) -> Response:
        """Return examples as the model sees them, with counts of the data and notes about problems.

        Of the settings, only those count that say how the file is read.
        """
        body = await _body(request)
        model, data = self._workspace.model(body.get("model")), self._workspace.data(body.get("data"))
        command = Command.of("inspect", data, *settings.reading_words(body.get("settings", {})), "--model", model)
        found = json.loads(
            await self._runner.output_of("examples", command.with_words("--json", "--examples", _EXAMPLES))
        )
        report = decode(PrepareReport, found["report"], "the report")
        notes = report.notes()
        return JSONResponse(
            {
                "examples": [_shown(Preview(**each)) for each in found["examples"]],
                "counts": watching.counts(report),
                "lengths": report.lengths,
                "notes": notes,
                "command": command.shown,
            }
        )

    async def command(self, request: Request) -> Response:
        """Return the command that trains with these choices, once its options have been checked."""
        return JSONResponse({"command": self._train_command(await _body(request)).shown})

    async def forecast(self, request: Request) -> Response:
        """Return time and memory of training with these choices: what `train --dry-run` finds."""
        body = await _body(request)
        out = f"{OWN}/{temporary_name('forecast', 'run')}"
        command = self._train_command(body, out).with_words("--dry-run", "--json")
        try:
            found = json.loads(await self._runner.output_of("forecast", command))
        finally:
            shutil.rmtree(self._workspace.folder / out, ignore_errors=True)
        plan, config = found["plan"], found["configuration"]
        data = decode(dict[Part, PrepareReport | TokenCounts], found["data"], "data")
        return JSONResponse(
            {
                "steps": found["steps"],
                "seconds": found["steps"] * (plan["predicted_step_seconds"] or 0),
                "plan": plan,
                "held_out": data["eval"].sequences if "eval" in data else None,
                "sequences": data["train"].sequences,
                "config": {name: config[name] for name in ("learning_rate", "seq_len", "rank", "epochs", "optimizer")},
                "notes": watching.notes(data),
            }
        )

    def _train_command(self, body: Mapping[str, Any], out: str | None = None) -> Command:
        model, data = self._workspace.model(body.get("model")), self._workspace.data(body.get("data"))
        held_out = body.get("eval_data")
        words = [] if not held_out else ["--eval-data", self._workspace.data(held_out, "eval_data")]
        options = settings.words(body.get("settings", {}))
        name = out or path_word(self._workspace.new_run(body.get("name") or self._workspace.suggested_run()))
        return Command.of("train", model, "--data", data, *words, *options, "--out", name)

    async def train(self, request: Request) -> Response:
        """Start a new run."""
        body = await _body(request)
        name = self._workspace.new_run(body.get("name") or self._workspace.suggested_run())
        command = self._train_command({**body, "name": name})
        await self._talks.close()  # training may need the memory
        await self._runner.stop("forecast")
        self._starts.start(name, command)
        return JSONResponse({"name": name, "command": command.shown})

    async def runs(self, request: Request) -> Response:
        """Return the list of runs, and a free name for the next one."""
        return JSONResponse(
            {"runs": await run_in_threadpool(self._all_runs), "next_name": self._workspace.suggested_run()}
        )

    def _all_runs(self) -> list[dict[str, Any]]:
        found = {}
        for name in self._starts.names():
            if self._starts.is_alive(name):
                status = watching.STOPPING if self._starts.is_stopping(name) else watching.STARTING
                found[name] = {"status": status, "can_chat": False, "can_export": False}
            elif (failure := self._starts.failure(name)) is not None:
                found[name] = {"status": "failed", "failure": failure, "can_chat": False, "can_export": False}
        for name in self._workspace.runs():
            try:
                found[name] = watching.brief(
                    self._workspace.run(name), self._starts.is_alive(name), self._starts.is_stopping(name)
                )
            except FeatherbackError as error:
                found[name] = watching.damaged(error)
        return [{"name": name, **values} for name, values in found.items()]

    async def run(self, request: Request) -> Response:
        """Return everything about a run."""
        return JSONResponse(await run_in_threadpool(self._state, self._known(request)))

    def _known(self, request: Request) -> str:
        """Return the name of the run in a request's path. Raises RefusedError if there is none."""
        name = str(request.path_params["name"])
        if name not in self._workspace.runs() and name not in self._starts.names():
            raise RefusedError(f"There is no run {excerpt(name)} here.", 404)
        return name

    def _state(self, name: str) -> dict[str, Any]:
        alive, stopping, log = self._starts.is_alive(name), self._starts.is_stopping(name), self._starts.output(name)
        if name not in self._workspace.runs():
            failure = self._starts.failure(name)
            status = (watching.STOPPING if stopping else watching.STARTING) if alive else "failed"
            return {"name": name, "status": status, "failure": failure, "log": log, "alive": alive}
        run = self._workspace.run(name)
        shown = watching.state(run, name, alive, stopping)
        commands = {
            "chat": chat_shown(run, name),
            "resume": Command.of("train", "--out", path_word(name), "--resume").shown,
            "report": Command.of("report", path_word(name)).shown,
            "export": Command.of("export", path_word(name), "--to", "TARGET").shown,
        }
        return {"name": name, **shown, "log": log, "alive": alive, "commands": commands}

    async def stop(self, request: Request) -> Response:
        """Ask a run to save and stop."""
        self._starts.stop(self._known(request))
        return JSONResponse({})

    async def resume(self, request: Request) -> Response:
        """Resume a run."""
        name = self._known(request)
        command = resume_command(self._workspace, name)
        await self._talks.close()
        self._starts.start(name, command)
        return JSONResponse({"name": name, "command": command.shown})

    async def samples(self, request: Request) -> Response:
        """Make answers to more examples, before and after training."""
        name, body = self._known(request), await _body(request)
        count = body.get("count")
        if not isinstance(count, int) or not 0 < count <= _MOST_SAMPLES:
            raise RefusedError(f"`count` must be a whole number from 1 to {_MOST_SAMPLES}.", param="count")
        self._workspace.run_path(name)
        command = Command.of("report", path_word(name), "--samples", count)
        await self._runner.output_of("samples", command)
        shown = watching.samples(self._workspace.run(name).record)
        return JSONResponse({"samples": shown, "command": command.shown})

    async def compare(self, request: Request) -> Response:
        """Return two runs in one chart, and the options in which they differ."""
        names = (await _body(request)).get("runs")
        if not isinstance(names, list) or len(names) != 2 or names[0] == names[1]:
            raise RefusedError("`runs` must be the names of two runs.", param="runs")
        runs = {str(name): self._workspace.run(name) for name in names}
        return JSONResponse(await run_in_threadpool(watching.comparison, runs))

    async def chat(self, request: Request) -> Response:
        """Answer conversations with a run's adapter and with its base model: a line of JSON for each piece."""
        body = await _body(request)
        run = self._workspace.run(body.get("run"))
        if (other := self._starts.running()) is not None:
            raise RefusedError(f"The run {other} is being trained. Chat needs its memory: wait for its end.", 409)
        lines = self._talks.answers(run, asked_of(body))
        first = await anext(lines)  # errors before the answer begins have a status

        async def all_lines() -> AsyncIterator[bytes]:
            yield first
            async for line in lines:
                yield line

        return StreamingResponse(all_lines(), media_type="application/x-ndjson")

    async def stop_chat(self, request: Request) -> Response:
        """End the answers that are being written."""
        await self._talks.stop()
        return JSONResponse({})

    async def export(self, request: Request) -> Response:
        """Export a run for another program, into the opened folder."""
        body = await _body(request)
        name, to = body.get("run"), body.get("to")
        self._workspace.run_path(name)
        if to not in FORMATS.names:
            raise RefusedError(f"There is no export target {excerpt(to)}.", param="to")
        command = Command.of("export", path_word(str(name)), "--to", to)
        if (kind := body.get("type")) is not None:
            if not isinstance(kind, str) or not kind.isidentifier():
                raise RefusedError(f"There is no number format {excerpt(kind)}.", param="type")
            command = command.with_words("--type", kind)
        if body.get("force") is True:
            command = command.with_words("--force")
        found = json.loads(await self._runner.output_of("export", command.with_words("--json")))
        return JSONResponse({**found, "command": command.shown})


def _target(name: str) -> dict[str, Any]:
    """Return what the page shows of an export target."""
    target = FORMATS[name]
    types = [kind.name.lower() for kind in target.types]
    return {"name": name, "title": PROGRAMS.get(name, name), "help": target.help, "types": types}


async def _body(request: Request) -> dict[str, Any]:
    """Return the body of a request, a JSON object. Raises RefusedError if it is something else."""
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise RefusedError("The body of the request is not JSON.") from None
    if not isinstance(body, dict):
        raise RefusedError("The body of the request must be a JSON object.")
    return body


def _shown(preview: Preview) -> dict[str, Any]:
    """Return an example with its pieces as HTML."""
    pieces = [{"html": escape_with_small_tokens(text), "trained": trained} for text, trained in preview.runs]
    return {**asdict(preview), "runs": pieces}
