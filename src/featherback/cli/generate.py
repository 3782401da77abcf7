"""`featherback generate`"""

from __future__ import annotations

import sys
from pathlib import Path

from featherback.cli.options import (
    ADAPTER,
    COMPUTE,
    KV,
    LOOKUP,
    MEMORY,
    MIN_P,
    MODEL,
    SEED,
    TOP_K,
    decode_option,
    temperature_option,
    top_p_option,
)
from featherback.cli.parameters import of_training
from featherback.core.options import option
from featherback.core.terminal import quoted, say
from featherback.data.source import STDIN
from featherback.errors import FeatherbackError
from featherback.infer import GENERATE_DECODE, GENERATED_TOKENS


def generate(
    model: str = MODEL,
    prompt: str | None = option(
        None,
        metavar="TEXT",
        help="The prompt to answer or, with --raw, to continue. If it is missing or -, it is read from standard input.",
    ),
    adapter: Path | None = ADAPTER,
    system: str | None = option(None, metavar="TEXT", help="System message before the prompt."),
    raw: bool = option(False, help="Continue the prompt, without the chat template."),
    max_tokens: int = option(GENERATED_TOKENS, help="Maximum length of the answer in tokens.", least=1),
    temperature: float = temperature_option(0.0),
    top_p: float = top_p_option(1.0),
    top_k: int = TOP_K,
    min_p: float = MIN_P,
    seed: int = SEED,
    decode: str = decode_option(GENERATE_DECODE),
    kv: str = KV,
    lookup: bool = LOOKUP,
    memory: int | str | None = MEMORY,
    quantize: str = of_training(),
    compute: str = COMPUTE,
    threads: int | None = of_training(),
    device: str = of_training(),
    vram: int | None = of_training(),
) -> None:
    """Answer a prompt with MODEL, with or without an adapter.

    Example: featherback generate model.gguf --adapter notes-adapter --prompt "What did I note on Monday?"

    The prompt can come from a pipe: featherback generate model.gguf < question.txt
    """
    from featherback.cli.options import check_adapter, open_model, set_threads
    from featherback.data.tokenizers.loader import load_tokenizer
    from featherback.engine import backend
    from featherback.engine.host.maps import MapWatch
    from featherback.infer.sampler import Sampler
    from featherback.model import streamed
    from featherback.runs.compute import resolve_compute
    from featherback.runs.decoders import Within
    from featherback.runs.panels.run import check_device

    check_device(device, vram, memory)
    set_threads(threads)
    backend.use(device, vram)
    text = _prompt(prompt, model)
    sampler = Sampler(temperature, top_p, top_k, seed, min_p)
    opened, _ = open_model(model, quantize=quantize)
    check_adapter(opened, adapter)
    within = Within(memory, whole=True, decode=decode, kv=kv, lookup=lookup)
    compute = resolve_compute(compute, model, adapter)
    with MapWatch(opened.maps) as maps:
        tokenizer = load_tokenizer(opened.path)
        for piece in streamed(opened, tokenizer, text, sampler, max_tokens, adapter, system, raw, compute, within):
            maps.check()
            say(piece, end="", flush=True)
    say()


def _prompt(given: str | None, model: str) -> str:
    """The prompt from the command line, or from standard input without its last line feed.

    Raises FeatherbackError, with an example for `model`, if there is none.
    """
    if given not in (None, STDIN):
        return str(given)
    text = "" if given is None and sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")
    if not text.strip():
        example = quoted("featherback", "generate", model, "--prompt", "What is LoRA?")
        raise FeatherbackError(f"There is no prompt. Add one: `{example}`. A pipe works too.")
    return text
