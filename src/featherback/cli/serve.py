"""`featherback serve`"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from featherback.cli.options import (
    ALLOW_HOST,
    COMPUTE,
    HOST,
    KV,
    MEMORY,
    MODEL,
    TOP_K,
    decode_option,
    port_option,
    temperature_option,
    top_p_option,
)
from featherback.cli.parameters import of_training
from featherback.core.naming import argument
from featherback.core.options import option
from featherback.core.terminal import Progress, print_error, quoted, say, several
from featherback.errors import FeatherbackError, expected
from featherback.infer import CHAT_DECODE, CONTEXT, TEMPERATURE, TOP_P

if TYPE_CHECKING:
    from featherback.web.guard import Rules
    from featherback.web.openai.service import Service

API_KEY = "FEATHERBACK_API_KEY"
_WAITING = 256
_PREFIX_CACHE_SIZE = "1GB"
_POOLINGS = ("mean", "last")


def serve(
    model: str = MODEL,
    adapter: list[str] | None = option(
        None,
        metavar="[NAME=]PATH",
        several=True,
        help="A run, or a PEFT, MLX or GGUF adapter. Its name, or the name of its folder, is a model name. May be "
        "repeated.",
    ),
    adapters_folder: list[Path] | None = option(
        None,
        metavar="FOLDER",
        several=True,
        help="Adapters that appear in this folder get a model name by themselves, and requests may add others from it. "
        "May be repeated.",
    ),
    name: str | None = option(
        None, metavar="TEXT", help="Name of the model without an adapter. The default is its file's name."
    ),
    context: int = option(CONTEXT, help="Maximum length of a prompt and its answer in tokens.", least=1),
    temperature: float = temperature_option(TEMPERATURE),
    top_p: float = top_p_option(TOP_P),
    top_k: int = TOP_K,
    kv: str = KV,
    decode: str = decode_option(CHAT_DECODE),
    pooling: str = option(
        _POOLINGS[0],
        metavar="|".join(_POOLINGS),
        help="Embeddings are the mean of the text's hidden states, or the last one.",
    ),
    prefix_cache: Path | None = option(
        None,
        metavar="FOLDER",
        help="Keep what prompts have computed in files in this folder, so that it is known after a restart. The files "
        "reveal the prompts, and only you can read them.",
    ),
    prefix_cache_size: str = option(
        _PREFIX_CACHE_SIZE, metavar="SIZE", help="The most disk space for --prefix-cache: 500MB or 4GB."
    ),
    json_mode: bool | None = option(
        None,
        negatable=True,
        help="Accept requests for JSON (response_format). On by default, but off with --memory, because it takes tens "
        "of megabytes.",
    ),
    control_tokens: bool = option(
        False,
        help="Read names of control tokens in prompts of /v1/completions as the tokens, for clients that write the "
        "model's own format, such as <|fim_prefix|>.",
    ),
    waiting: int = option(_WAITING, help="Requests that may wait. Further ones get status 503.", least=1),
    host: str = HOST,
    port: int = port_option(8000),
    allow_host: list[str] | None = ALLOW_HOST,
    api_key: str | None = option(
        None,
        metavar="TEXT",
        help=f"Key that clients must send. Other users of this machine cannot see it in the variable {API_KEY}.",
    ),
    memory: int | str | None = MEMORY,
    quantize: str = of_training(),
    compute: str = COMPUTE,
    threads: int | None = of_training(),
) -> None:
    """Serve MODEL and its adapters to programs that speak the OpenAI API.

    Example: featherback serve model.gguf --adapter notes --adapter tone

    Each adapter is a model name, and all share one copy of the weights. --temperature, --top-p and --top-k apply to
    requests that do not set them. Ctrl-C ends the server.
    """
    from featherback.web import check_extra

    check_extra("serve")
    if json_mode:
        from featherback.infer.grammar import check_installed

        check_installed()
    from featherback.cli.options import open_model, set_threads
    from featherback.infer.batching import POOLINGS
    from featherback.infer.sampler import Sampler
    from featherback.runs.compute import resolve_compute
    from featherback.runs.decoders import Within
    from featherback.runs.parse import amount
    from featherback.web import guard, server
    from featherback.web.connection import Patience
    from featherback.web.openai.app import application
    from featherback.web.openai.asked import Defaults
    from featherback.web.openai.opening import Served, named_adapters, opened

    rules = guard.rules_for(host, frozenset(each.lower() for each in allow_host or ()))
    rules = replace(rules, key=_checked_key(api_key or os.environ.get(API_KEY) or None))
    Sampler(temperature, top_p, top_k)  # which checks them
    if (way := next((each for each in POOLINGS if each == pooling), None)) is None:
        raise FeatherbackError(f"{argument('pooling', pooling)}: {expected(pooling, POOLINGS)}")
    folders = adapters_folder or []
    for folder in folders:
        if not folder.is_dir():
            raise FeatherbackError(f"{argument('adapters_folder', folder)}: there is no such folder.")
    adapters = named_adapters(adapter or [])
    set_threads(threads)
    served = Served(
        base=name or _name_of(model),
        adapters=adapters,
        folders=folders,
        context=context,
        waiting=waiting,
        compute=resolve_compute(compute, model, *adapters.values()),
        within=Within(memory, whole=True, kv=kv, decode=decode),
        defaults=Defaults(temperature, top_p, top_k),
        pooling=way,
        prefix_cache=prefix_cache,
        json_mode=memory is None if json_mode is None else json_mode,
        control_tokens=control_tokens,
        prefix_cache_bytes=amount("prefix_cache_size", prefix_cache_size),
    )
    with server.listen(host, port) as listener, _Live() as live:
        base, _ = open_model(model, quantize=quantize)
        with opened(base, served, live.note) as service:
            rules = replace(rules, log=live.note, failed=lambda error: live.note(f"error: {error!r}. This is a bug."))
            rules, patience = served.limited(rules, Patience())
            app = guard.guarded(application(service), rules)

            def on_start() -> None:
                _greet(server.address_of(listener), service, rules, host)
                live.start(service)

            server.serve(app, listener, on_start, patience)


def _checked_key(key: str | None) -> str | None:
    if key is not None and (not key.isprintable() or not key.strip() or key != key.strip()):
        raise FeatherbackError(
            f"{argument('api_key')} must be text without spaces at its ends. Make one with: openssl rand -hex 16"
        )
    return key


def _name_of(model: str) -> str:
    """The name of the base model: that of its file or folder, or the one that the user typed."""
    path = Path(model)
    if not path.exists():
        return model
    return path.resolve().name if path.is_dir() else path.stem


def _greet(address: str, service: Service, rules: Rules, host: str) -> None:
    """Print where the server is, what it serves, and a command to try it."""
    from featherback.web.guard import is_loopback

    if rules.key is None and not is_loopback(host):
        print_error(
            "warning: everyone who can reach this machine may use the server. To ask for a key, set the variable "
            f"{API_KEY}."
        )
    names = [service.shelf.base, *(entry.name for entry in service.shelf.entries())]
    said = "Say hello in French."
    if service.template is None:
        path, content = "completions", {"model": names[-1], "prompt": said, "max_tokens": 32}
    else:
        path, content = "chat/completions", {"model": names[-1], "messages": [{"role": "user", "content": said}]}
    key = [] if rules.key is None else ["-H", f"Authorization: Bearer ${API_KEY}"]
    say(f"Serving on {address}/v1")
    say(f"Models: {', '.join(names)}")
    say("Try:")
    words = ["curl", f"{address}/v1/{path}", "-H", "Content-Type: application/json", "-d", json.dumps(content)]
    shown = quoted(*words) + "".join(f' {key[0]} "{key[1]}"' if key else "")
    say(f"  {shown}")
    say("Ctrl-C ends the server.", flush=True)


class _Live(Progress):
    """A line for each request on standard error, and on a terminal a line of what goes on now."""

    def __init__(self) -> None:
        super().__init__("now")

    def note(self, text: str) -> None:
        """Print a line."""
        self.clear()
        print_error(text)

    def start(self, service: Service) -> None:
        """Begin to show the activity of a service, in the running event loop."""
        import asyncio

        async def show() -> None:
            before = 0
            while True:
                await asyncio.sleep(1)
                answers, tokens = service.activity
                if answers:
                    self.show(f"{several(answers, 'answer')}, {tokens - before} tokens/s")
                else:
                    self.clear()
                before = tokens

        if sys.stderr.isatty():
            self._task = asyncio.get_running_loop().create_task(show())
