"""The model of the Python interface, which also generates text and chats."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from featherback import models
from featherback.core.naming import argument_is
from featherback.data.templates.chat import ChatTemplate
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.exports import formats
from featherback.infer import CHAT_DECODE, CONTEXT, GENERATE_DECODE, GENERATED_TOKENS, TEMPERATURE, TOP_P
from featherback.infer.classify import Classified
from featherback.infer.conversation import Conversation
from featherback.infer.generate import generate_text
from featherback.infer.key_cache import EXACT
from featherback.infer.prompt import Prompt, encode_prompt
from featherback.infer.sampler import Sampler
from featherback.models import adapter as adapters
from featherback.runs.by_name import fields_of
from featherback.runs.classifying import Classifier
from featherback.runs.decoders import UNLIMITED, Within, open_decoder
from featherback.runs.outcome import wraps
from featherback.runs.run import Run

if TYPE_CHECKING:
    from typing_extensions import Unpack

Adapter = adapters.Adapter | Run | str | os.PathLike[str]
"""An adapter, a run, or a path: a run's directory, or an adapter in PEFT, MLX or GGUF format."""


class Generation(TypedDict, total=False):
    """The options of `Model.generate`, which describes them."""

    adapter: Adapter | None
    system: str | None
    raw: bool
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    compute: str
    decode: str
    memory: int | str | None
    kv: str
    lookup: bool


class Model(models.Model):
    """An opened model. Its weights stay on disk, so it needs almost no memory."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Open it again where it is unpickled."""
        return partial(models.load, self.path, self.quantize, kind=type(self)), ()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's own tokenizer: text to token ids and back."""
        self.check_open()
        return load_tokenizer(self.path)

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[False] = ..., **options: Unpack[Generation]) -> str: ...

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[True], **options: Unpack[Generation]) -> Iterator[str]: ...

    def generate(
        self,
        prompt: Prompt,
        *,
        stream: bool = False,
        adapter: Adapter | None = None,
        system: str | None = None,
        raw: bool = False,
        max_tokens: int = GENERATED_TOKENS,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int = 0,
        compute: str = "bf16",
        decode: str = GENERATE_DECODE,
        memory: int | str | None = None,
        kv: str = EXACT,
        lookup: bool = True,
    ) -> str | Iterator[str]:
        """Answer a prompt, or a list of messages ([{"role": "user", "content": ...}, ...]).

        `stream`: return an iterator over pieces of the answer (str) as they are generated. `system`: a system message.
        `raw`: continue the text without the chat template. `max_tokens`: maximum length of the answer. `temperature`: 0
        always takes the most likely token; higher values vary more. `top_p`: sample only from the most likely tokens up
        to this total probability. `top_k`: sample only from this many tokens, 0 for all. `min_p`: leave out tokens less
        likely than this share of the likeliest one's. `memory`: the most that this process may hold, such as
        "96MB"; weights and cache are then read from the disk as needed. `kv`: the type of cached keys and values, "f32"
        (exact), "q8_0" or "q4_0". `lookup`: guess tokens where the text repeats itself, and check several at once; the
        answer is the same. Raises FeatherbackError, before the first piece, for an unusable option, prompt, adapter or
        budget.
        """
        sampler, within = Sampler(temperature, top_p, top_k, seed, min_p), _within(memory, decode, kv, lookup)
        pieces = streamed(self, self.tokenizer, prompt, sampler, max_tokens, adapter, system, raw, compute, within)
        return pieces if stream else "".join(pieces)

    def classify(
        self,
        texts: Prompt | Sequence[Prompt],
        *,
        adapter: Adapter,
        chat: bool | None = None,
        compute: str = "bf16",
        memory: int | str | None = None,
    ) -> list[Classified]:
        """Give texts their labels, or their rewards, with an adapter that `train(objective="classify")` made.

        `texts`: a text, a list of texts, or a list of lists of messages. `chat`: wrap each text in the chat template,
        as prompts in the training data are; None: as the run in `adapter` was trained, and otherwise not. `memory`: the
        most that this process may hold, such as "96MB". Raises FeatherbackError if the adapter has no trained head, and
        for an empty text.
        """
        given: Sequence[Prompt] = [texts] if isinstance(texts, str) else texts  # type: ignore[assignment]
        placed = [(f"text {number}", text) for number, text in enumerate(given)]
        wrapped, within = wraps(adapter) if chat is None else chat, _within(memory)
        loaded = _given(adapter, within)
        assert loaded is not None
        with closing(Classifier(self, self.tokenizer, loaded, wrapped, compute, within)) as classifier:
            classifier.make_room(placed)
            return list(classifier.classify(placed))

    def chat(
        self,
        *,
        adapter: Adapter | None = None,
        system: str | None = None,
        context: int = CONTEXT,
        temperature: float = TEMPERATURE,
        top_p: float = TOP_P,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int = 0,
        compute: str = "bf16",
        decode: str = CHAT_DECODE,
        memory: int | str | None = None,
        kv: str = EXACT,
        lookup: bool = True,
    ) -> Conversation:
        """Start a conversation of at most `context` tokens: `chat = model.chat(); chat.ask("Hello")`.

        The other options are those of `generate`. Raises FeatherbackError if the model has no chat template.
        """
        sampler, within = Sampler(temperature, top_p, top_k, seed, min_p), _within(memory, decode, kv, lookup)
        return conversation(self, self.tokenizer, sampler, context, adapter, system, compute, within)


def streamed(
    model: models.Model,
    tokenizer: Tokenizer,
    prompt: Prompt,
    sampler: Sampler,
    max_tokens: int,
    adapter: Adapter | None = None,
    system: str | None = None,
    raw: bool = False,
    compute: str = "bf16",
    within: Within = UNLIMITED,
) -> Iterator[str]:
    """The answer to a prompt, piece by piece.

    Raises FeatherbackError, before the first piece, for unusable arguments.
    """
    if max_tokens < 1:
        raise FeatherbackError(f"{argument_is('max_tokens', max_tokens)}; it must be at least 1.")
    ids = encode_prompt(tokenizer, prompt, system, raw)
    decoder = open_decoder(model, _given(adapter, within), len(ids) + max_tokens, compute, within)
    return generate_text(decoder, tokenizer, ids, sampler, max_tokens)


def conversation(
    model: models.Model,
    tokenizer: Tokenizer,
    sampler: Sampler,
    context: int,
    adapter: Adapter | None = None,
    system: str | None = None,
    compute: str = "bf16",
    within: Within = UNLIMITED,
) -> Conversation:
    """Start a conversation with a model."""
    if context < 1:
        raise FeatherbackError(f"{argument_is('context', context)}; it must be at least 1.")
    template = ChatTemplate(tokenizer)
    if within.is_limited:
        template.start()  # so that its memory counts
    decoder = open_decoder(model, _given(adapter, within), context, compute, within)
    return Conversation(decoder, tokenizer, template, sampler, system)


def _within(memory: int | str | None, decode: str = GENERATE_DECODE, kv: str = EXACT, lookup: bool = True) -> Within:
    """The limit that a caller gave, as text or in megabytes, like `train`'s, and how tokens are decoded and stored."""
    limit = fields_of({"memory": memory}, "featherback.generate")["memory"]
    return Within(limit, decode=decode, kv=kv, lookup=lookup)


def _given(adapter: Adapter | None, within: Within) -> adapters.Adapter | Path | None:
    """The loaded adapter, or its path if it is not loaded yet or should not be."""
    if isinstance(adapter, Run):
        return adapter.adapter_path if within.is_limited else adapter.adapter
    return adapter if adapter is None or isinstance(adapter, adapters.Adapter) else Path(adapter)


def opened(model: models.Model, adapter: Adapter | None) -> adapters.Adapter | None:
    """The loaded adapter; None if there is none."""
    if isinstance(adapter, Run):
        return adapter.adapter
    return (
        adapter if adapter is None or isinstance(adapter, adapters.Adapter) else formats.load(model, os.fspath(adapter))
    )
