"""`featherback chat`"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from featherback.cli.options import (
    AdapterOption,
    ComputeOption,
    ModelArgument,
    SeedOption,
    TemperatureOption,
    ThreadsOption,
    TopKOption,
    TopPOption,
)
from featherback.errors import FeatherbackError
from featherback.terminal import OutputError, complain, say


def chat(
    model: ModelArgument,
    adapter: AdapterOption = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="A system message.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer, in tokens.")] = 512,
    context: Annotated[int, typer.Option(min=1, help="Longest conversation, in tokens.")] = 4096,
    temperature: TemperatureOption = 0.7,
    top_p: TopPOption = 0.95,
    top_k: TopKOption = 0,
    seed: SeedOption = 0,
    *,
    compute: ComputeOption,
    threads: ThreadsOption,
) -> None:
    """Chat with MODEL. An empty line or Ctrl-D ends the conversation, /new begins another."""
    from featherback.cli.options import open_model, set_threads
    from featherback.data.chat import ChatTemplate
    from featherback.data.tokenizer_loader import load_tokenizer
    from featherback.host.maps import MapWatch
    from featherback.inference.conversation import Conversation
    from featherback.inference.decoder import Decoder
    from featherback.inference.sampler import Sampler

    sampler = Sampler(temperature, top_p, top_k, seed)
    opened, lora = open_model(model, adapter)
    set_threads(threads)
    failed = False
    with MapWatch(opened.files) as maps:
        tokenizer = load_tokenizer(opened.path)
        template = ChatTemplate(tokenizer)
        decoder = Decoder(opened, lora, context, compute)
        conversation = Conversation(decoder, tokenizer, template, sampler, system)
        say("An empty line ends the conversation; /new begins another.", file=sys.stderr)
        while text := _ask():
            if text == "/new":
                conversation = Conversation(decoder, tokenizer, template, sampler, system)
                continue
            try:
                for piece in conversation.answer(text, max_tokens):
                    maps.check()
                    say(piece, end="", flush=True)
            except OutputError:
                raise
            except FeatherbackError as error:  # of this line: the conversation goes on with the next
                maps.check()  # not without the model
                failed = True
                complain(f"error: {error}")
                continue
            say()
    if failed:
        raise typer.Exit(2)


def _ask() -> str:
    """The next line of the user; empty at the end."""
    if sys.stdin.isatty():
        try:
            return input("> ").strip()
        except EOFError:
            return ""
    return sys.stdin.readline().strip()
