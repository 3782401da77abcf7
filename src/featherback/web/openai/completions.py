"""POST /v1/completions"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.infer.batching import Emitted
from featherback.web.guard import release_body
from featherback.web.openai.asked import MOST_ANSWERS, MOST_LIKELY, Asked
from featherback.web.openai.chat import ChatForm
from featherback.web.openai.fields import Fields
from featherback.web.openai.forms import JSON, Exchange, Form, finite
from featherback.web.openai.replies import Piece
from featherback.web.openai.service import Service
from featherback.web.refusal import RefusedError

_TOKENS = 16
"""The length of an answer unless the request says it: OpenAI's."""
MOST_INPUTS = 2048
_FILL_IN = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, Granite
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
"""The tokens before a prompt, before its suffix, and before the text between them."""


async def completions(service: Service, request: Request) -> Response:
    """Continue texts."""
    return await (await _understood(service, request)).respond(request)


async def fim_completions(service: Service, request: Request) -> Response:
    """Write the text between a prompt and a suffix. Answers have the form of a chat, as in Mistral's API."""
    return await (await _understood(service, request, as_chat=True)).respond(request)


async def _understood(service: Service, request: Request, as_chat: bool = False) -> Exchange:
    fields = await Fields.of(request)
    asked = Asked.of(fields, service.defaults, service.tokenizer.n_vocab)
    given = fields.take("prompt")
    logprobs = fields.whole("logprobs", None, 0, MOST_LIKELY)
    wanted = fields.length("max_tokens", None if as_chat else _TOKENS)
    if as_chat:
        wanted = fields.length("max_completion_tokens", wanted)
    echo = fields.flag("echo")
    if echo and logprobs is not None:
        fields.refuse("echo", "with logprobs is not supported: a prompt's own probabilities are not computed.")
    suffix = fields.text("suffix")
    if echo and (suffix or as_chat):
        fields.refuse("echo", "with suffix is not supported.")
    if logprobs is not None and as_chat:
        fields.refuse("logprobs", "is not supported here; remove it.", "unsupported_parameter")
    fields.end()
    several = await encoded(service, given, "prompt", service.control_tokens)
    if suffix:
        several = [await service.work(_between, service.tokenizer, ids, suffix) for ids in several]
    if len(several) * asked.count > MOST_ANSWERS:
        raise RefusedError(
            f"The request asks for {len(several) * asked.count} answers; at most {MOST_ANSWERS} are given. Send "
            "several requests.",
            param="prompt",
        )
    prompts = [service.prompt(ids, wanted, "prompt") for ids in several]
    echoed = [_shown(service.tokenizer, ids) for ids in several] if echo else []
    model = asked.model or service.shelf.base
    form: Form = ChatForm(model, service.tokenizer, None)
    if not as_chat:
        form = _Completion(model, service.tokenizer, logprobs, echoed, asked.count)
    release_body(request.scope)
    return Exchange(service, asked, prompts, form, logprobs)


async def encoded(service: Service, given: Any, param: str, special: bool = False) -> list[list[int]]:
    """Return the token ids of a text, of several texts, or of ids. Raises RefusedError.

    Names of control tokens in a text are plain text, or the tokens if `special` is true.
    """
    inputs = given if isinstance(given, list) and (not given or type(given[0]) is not int) else [given]
    if not inputs or len(inputs) > MOST_INPUTS:
        raise RefusedError(f'"{param}" must have from 1 to {MOST_INPUTS} texts.', param=param)
    lengths = [len(each) for each in inputs if isinstance(each, str)]
    service.check_length(max(lengths, default=0), param)
    return await service.encode(sum(lengths), _encoded, service.tokenizer, inputs, param, special)


def _encoded(tokenizer: Tokenizer, inputs: Sequence[Any], param: str, special: bool) -> list[list[int]]:
    found = []
    for each in inputs:
        if isinstance(each, str):
            try:
                ids = tokenizer.encode(each, special, bos=True)
                found.append(ids[1:] if len(ids) > 1 and ids[0] == ids[1] == tokenizer.bos_id else ids)
            except FeatherbackError as error:
                raise RefusedError(str(error), param=param) from None
        elif isinstance(each, list) and _is_ids(each):
            if not all(0 <= token < tokenizer.n_vocab for token in each):
                raise RefusedError(
                    f'"{param}" has token ids outside the vocabulary, 0 to {tokenizer.n_vocab - 1}.', param=param
                )
            found.append(each)
        else:
            raise RefusedError(f'"{param}" must be a string, a list of strings, or token ids.', param=param)
    return found


def _between(tokenizer: Tokenizer, before: Sequence[int], suffix: str) -> list[int]:
    """Return the prompt for the text between a prompt and a suffix. Raises RefusedError if the model knows none."""
    for names in _FILL_IN:
        marks = [tokenizer.encode(name, special=True) for name in names]
        if all(len(mark) == 1 and tokenizer.name(mark[0]) == name for mark, name in zip(marks, names, strict=True)):
            begin, hole, end = marks
            first = 1 if tokenizer.add_bos and [*before[:1]] == [tokenizer.bos_id] else 0
            return [*before[:first], *begin, *before[first:], *hole, *tokenizer.encode(suffix), *end]
    raise RefusedError(
        "The model has no tokens for text between a prompt and a suffix. Use a model for code, such as Qwen2.5-Coder.",
        param="suffix",
        code="unsupported_parameter",
    )


def _is_ids(given: Sequence[Any]) -> bool:
    return bool(given) and all(type(each) is int for each in given)


def _shown(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of a prompt, without the token that begins each text."""
    begins = tokenizer.add_bos and ids[:1] == [tokenizer.bos_id]
    return tokenizer.decode(ids[1:] if begins else ids, special=True)


class _Completion(Form):
    prefix, kind, part = "cmpl", "text_completion", "text_completion"

    def __init__(
        self, model: str, tokenizer: Tokenizer, logprobs: int | None, echoed: Sequence[str], count: int
    ) -> None:
        super().__init__(model, tokenizer, logprobs)
        self._echoed, self._count = echoed, count
        self._lengths: Counter[int] = Counter()  # characters of each answer whose tokens were listed

    def choice(self, index: int, whole: Piece) -> JSON:
        text = self._echoed[index // self._count] + whole.text if self._echoed else whole.text
        return self._choice(index, text, whole)

    def change(self, index: int, piece: Piece) -> JSON:
        return self._choice(index, piece.text, piece)

    def opening(self, count: int) -> Sequence[JSON]:
        if not self._echoed:
            return ()
        return [self._choice(index, self._echoed[index // self._count], Piece("")) for index in range(count)]

    def _choice(self, index: int, text: str, piece: Piece) -> JSON:
        likely = self._likely(index, piece.tokens)
        return {"index": index, "text": text, "logprobs": likely, "finish_reason": piece.finish}

    def _likely(self, index: int, tokens: Sequence[Emitted]) -> JSON | None:
        if self._logprobs is None:
            return None
        texts = [self.text_of(each.token) for each in tokens]
        offsets = []
        for text in texts:
            offsets.append(self._lengths[index])
            self._lengths[index] += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [finite(each.logprob) for each in tokens],
            "top_logprobs": ({self.text_of(token): finite(logprob) for token, logprob in each.top} for each in tokens),
            "text_offset": offsets,
        }
