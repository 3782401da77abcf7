"""Open a model with its adapters, within a memory budget, ready to be served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from featherback.core.naming import argument
from featherback.core.sizes import MB
from featherback.data.templates.chat import ChatTemplate
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.engine.budget import BudgetError
from featherback.errors import FeatherbackError
from featherback.infer.batching import SLOTS, Batcher, Pooling
from featherback.infer.grammar import MEMORY_IN_BUDGET, PROCESS, Grammars
from featherback.infer.prefix_files import PrefixFiles
from featherback.models.model import Model
from featherback.runs.decoders import Within, open_adapter, open_batcher
from featherback.web.connection import Patience
from featherback.web.guard import Rules
from featherback.web.openai.asked import Defaults
from featherback.web.openai.service import Service
from featherback.web.openai.shelf import Shelf

RESERVE = 12 * MB
"""Bytes of a budget that are kept free for requests and for adapters that are added later."""
SCHEMAS = 2
"""JSON schemas that are followed at once within a budget, which keeps room free for them."""
_TOKEN_BYTES, _OTHER_BYTES = 16, 64_000
"""Bytes of a request's body for each token of the context, and besides."""
_VALUES_BYTES = 4 * MB
"""Bytes of the values in all bodies within a budget, a part of `RESERVE`."""
_CONNECTIONS = 64
"""The most open connections within a budget."""


@dataclass(frozen=True)
class Served:
    """What is served, and how."""

    base: str
    """The name of the model without an adapter."""
    adapters: Mapping[str, Path]
    """Name -> path."""
    folders: Sequence[Path]
    """Folders in which adapters may appear."""
    context: int
    waiting: int
    compute: str
    within: Within
    defaults: Defaults
    pooling: Pooling
    prefix_cache: Path | None = None
    """A folder for prefixes that are kept between restarts; None: they stay in memory."""
    prefix_cache_bytes: int = 0
    json_mode: bool = True
    """Whether requests may ask for JSON."""
    control_tokens: bool = False
    """Whether names of control tokens in prompts of completions are tokens."""

    def limited(self, rules: Rules, patience: Patience) -> tuple[Rules, Patience]:
        """Return the rules and the patience of the server. Within a budget, requests may take less memory."""
        if not self.within.is_limited:
            return rules, patience
        size = min(rules.body_bytes, _OTHER_BYTES + _TOKEN_BYTES * self.context)
        rules = replace(rules, body_bytes=size, all_bytes=4 * size + _VALUES_BYTES)
        return rules, replace(patience, connections=_CONNECTIONS)


@contextmanager
def opened(model: Model, served: Served, note: Callable[[str], object]) -> Iterator[Service]:
    """Yield the service of a model, and free everything at the end.

    Raises FeatherbackError if an adapter does not fit the model, and BudgetError if the budget is too small.
    `note` is called with a sentence about each adapter in a folder, or file of a prefix, that cannot be used.
    """
    within = served.within
    with ExitStack() as stack:
        tokenizer = load_tokenizer(model.path)
        template = ChatTemplate(tokenizer) if tokenizer.is_chat else None
        if template is not None:
            template.start()  # so that its memory counts
        shelf = Shelf(model, served.base, served.folders, partial(open_adapter, within=within), note)
        stack.callback(shelf.close)
        for name, path in served.adapters.items():
            shelf.add_named(name, path)
        shelf.entries()  # so that those in folders are looked at now
        open_grammars: Callable[[Tokenizer], Grammars] = Grammars
        schemas, reserve = SLOTS, RESERVE
        if not served.json_mode:
            open_grammars = _refuse_json
        elif served.within.is_limited:
            grammars = Grammars(tokenizer, MEMORY_IN_BUDGET)  # now, so that its memory counts
            stack.callback(grammars.close)
            open_grammars, schemas = (lambda _: grammars), SCHEMAS
            reserve += SCHEMAS * (MEMORY_IN_BUDGET + PROCESS + grammars.each)
        batcher = _batcher(model, served, reserve, note)
        stack.callback(batcher.close)
        service = Service(
            batcher,
            tokenizer,
            template,
            shelf,
            served.defaults,
            served.pooling,
            open_grammars,
            schemas,
            served.control_tokens,
        )
        stack.callback(service.close)
        yield service


def named_adapters(given: Sequence[str]) -> dict[str, Path]:
    """Return name -> path of adapters given as PATH or NAME=PATH. The name of a PATH is that of its last part.

    Raises FeatherbackError if two have the same name.
    """
    found: dict[str, Path] = {}
    for text in given:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            path = text
            name = Path(text).resolve().name.removesuffix(".gguf")
        if name in found:
            raise FeatherbackError(
                f"Two adapters are named {name}: {found[name]} and {path}. Give one of them another name: "
                f"{argument('adapter', f'{name}-2={path}')}."
            )
        found[name] = Path(path)
    return found


def _refuse_json(tokenizer: Tokenizer) -> Grammars:
    raise FeatherbackError(
        "Answers are text: this server was started without JSON mode, because it takes memory. Start it with "
        f"{argument('json_mode')}, or ask for JSON in the prompt."
    )


def _batcher(model: Model, served: Served, reserve: int, note: Callable[[str], object]) -> Batcher:
    """Open the batcher in what the budget leaves beside `reserve` bytes.

    Raises BudgetError with the amount for the whole process.
    """
    within = served.within
    limit = within.memory
    room = replace(within, memory=limit - reserve) if isinstance(limit, int) else within
    prefixes = None
    if served.prefix_cache is not None:
        prefixes = PrefixFiles(served.prefix_cache, served.prefix_cache_bytes, note)
    try:
        return open_batcher(model, served.context, served.compute, room, served.waiting, prefixes=prefixes)
    except BudgetError as error:
        assert isinstance(limit, int)
        raise BudgetError(error.what, limit, error.needed + reserve, error.advice) from None
