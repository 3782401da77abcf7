"""Arguments and options that several commands share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from featherback.cli.parameters import of_training
from featherback.core.options import option

if TYPE_CHECKING:
    from featherback.models.adapter import Adapter
    from featherback.models.model import Model

model_argument = partial(
    option,
    positional=True,
    metavar="MODEL",
    help="A GGUF file, a Hugging Face or MLX folder, or a name: smollm2-135m, ollama:qwen2.5:0.5b (see `models`).",
    brief="A GGUF file, a model folder, or a name that `models` lists",
)
MODEL = model_argument()
ADAPTER = option(None, metavar="PATH", help="Adapter to apply: a run, or a PEFT, MLX or GGUF adapter.")
COMPUTE = of_training(
    "Number format of matrix products: bf16, int16 (16-bit fixed point) or fp32, the most exact. auto: the format that "
    "the adapter was trained with, or bf16 if that is unknown."
)
MEMORY = of_training(
    "Memory budget, never exceeded: 96MB or 1.5GB. Weights and cache are then read from the disk as needed. least: the "
    "smallest budget that works.",
    shown_default="no limit",
)
OBJECTIVE = of_training(
    "What to measure: the loss of answers (next_token), or with pairs of answers that of dpo, ipo, kto, orpo, "
    "robust_dpo or simpo, with the share of pairs in which the better answer wins. An adapter with a trained head has "
    "its own objective."
)
JSON = option(False, help="Print JSON on standard output, for programs.")

# Options of decoding. Some defaults differ between commands.
decode_option = partial(
    option,
    metavar="exact|fast",
    help="fast: round what the weights multiply to 8 bits in decoding, as llama.cpp does, where that is faster.",
)
LOOKUP = option(
    True,
    negatable=True,
    help="Guess tokens where the text repeats itself, and check several at once. The answer is the same.",
)
temperature_option = partial(option, help="0 always takes the most likely token. Higher values vary the answers more.")
top_p_option = partial(option, help="Sample from the most likely tokens up to this total probability.")
TOP_K = option(0, help="Sample from this many of the most likely tokens. 0: all.")
MIN_P = option(0.0, help="Leave out tokens less likely than this share of the likeliest one's. 0: none.")
KV = option(
    "f32",
    metavar="TYPE",
    help="Type of the cached keys and values: f32, which is exact, q8_0 or q4_0. These take about a quarter and a "
    "seventh of the memory.",
)
SEED = option(0, help="Random seed. The same seed gives the same result.")

# Options of servers.
HOST = option("127.0.0.1", metavar="NAME", help="Address to listen on. 0.0.0.0: all addresses of this machine.")
port_option = partial(option, help="Port to listen on. 0: a free one.", least=0, most=65535)
ALLOW_HOST = option(
    None, metavar="NAME", several=True, help="Another host name by which clients reach the server. May be repeated."
)


def set_threads(threads: int | None) -> None:
    """Set the number of threads; None: one per core."""
    from featherback.engine import kernels

    kernels.set_threads(threads or kernels.default_threads())


def check_adapter(model: Model, adapter: Path | None) -> None:
    """Raise FeatherbackError if the adapter at this path does not fit the model. Its values are not read."""
    from featherback.exports import formats

    if adapter is not None:
        formats.form(model, adapter)


def open_model(name: str, adapter: Path | None = None, quantize: str = "none") -> tuple[Model, Adapter | None]:
    """Open the model and the adapter, if any, that the user gave."""
    from featherback import models
    from featherback.exports import formats
    from featherback.models.hub.locate import locate

    model = models.load(locate(name), quantize)
    return model, None if adapter is None else formats.load(model, adapter)
