"""`featherback generate`"""

from __future__ import annotations

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
from featherback.terminal import say


def generate(
    model: ModelArgument,
    prompt: Annotated[str, typer.Option(metavar="TEXT", help="What to answer, or with --raw, to continue.")],
    adapter: AdapterOption = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A system message before the prompt.")
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as plain text: no chat template.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Stop after this many tokens.")] = 256,
    temperature: TemperatureOption = 0.0,
    top_p: TopPOption = 1.0,
    top_k: TopKOption = 0,
    seed: SeedOption = 0,
    *,
    compute: ComputeOption,
    threads: ThreadsOption,
) -> None:
    """Let MODEL answer a prompt, with or without an adapter.

    Example: featherback generate model.gguf --adapter notes-adapter --prompt "What did I note on Monday?"
    """
    from featherback.cli.options import open_model, set_threads
    from featherback.data.tokenizer_loader import load_tokenizer
    from featherback.host.maps import MapWatch
    from featherback.inference.decoder import Decoder
    from featherback.inference.generate import generate_text
    from featherback.inference.prompt import encode_prompt
    from featherback.inference.sampler import Sampler

    sampler = Sampler(temperature, top_p, top_k, seed)
    opened, lora = open_model(model, adapter)
    set_threads(threads)
    with MapWatch(opened.files) as maps:
        tokenizer = load_tokenizer(opened.path)
        ids = encode_prompt(tokenizer, prompt, system, raw)
        maps.check()
        decoder = Decoder(opened, lora, len(ids) + max_tokens, compute)
        for piece in generate_text(decoder, tokenizer, ids, sampler, max_tokens):
            maps.check()
            say(piece, end="", flush=True)
    say()
