"""Answers that must be JSON of a schema: random logits, judged by the standard library's parser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.errors import FeatherbackError
from featherback.infer.grammar import Constrained, Grammars
from featherback.infer.sampler import Sampler
from tests.support import tiers
from tests.support.tiny_chat import N_VOCAB, byte_level_metadata, write_tiny_chat
from tests.support.tiny_models import TINY_LLAMA, tiny, write_tiny

BILL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "paid": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["new", "old"]}, "maxItems": 2},
    },
    "required": ["name", "count", "paid", "tags"],
    "additionalProperties": False,
}
MOST = 600


def is_bill(text: str) -> bool:
    """Whether a text is JSON of the schema BILL."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(value, dict)
        and value.keys() == {"name", "count", "paid", "tags"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 6
        and type(value["count"]) is int
        and 1 <= value["count"] <= 99
        and isinstance(value["paid"], bool)
        and set(value["tags"]) <= {"new", "old"}
        and len(value["tags"]) <= 2
    )


def nested(depth: int) -> dict[str, Any]:
    """A schema of arrays in arrays."""
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_tiny_chat(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def drawn(tokenizer: Tokenizer, choose: Any, seed: int) -> str:
    """The text of tokens that are drawn from random logits until one ends the answer."""
    random, ids = np.random.default_rng(seed), list[int]()
    while len(ids) < MOST:
        # more logits than tokens, as in models with a padded vocabulary
        token = choose(random.normal(0, 3, tokenizer.n_vocab + 5).astype(np.float32))
        if token in tokenizer.end_ids:
            break
        ids.append(token)
    return tokenizer.decode(ids, special=True)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_random_logits_give_json_of_the_schema(tokenizer: Tokenizer, temperature: float) -> None:
    grammars = Grammars(tokenizer)
    for seed in range(10):
        sampler = Sampler(temperature, top_p=0.95, top_k=40, seed=seed)
        text = drawn(tokenizer, Constrained(sampler, grammars.json(BILL)), seed)
        assert is_bill(text), text
        if temperature:  # without the grammar, they do not: the check can fail
            assert not is_bill(drawn(tokenizer, sampler, seed))


def test_a_value_can_end_only_where_it_is_complete(tokenizer: Tokenizer) -> None:
    grammar = Grammars(tokenizer).json({"type": "object"})
    for token in tokenizer.encode('{"a": [1, {"b": null}], "ü": "ö"}'):
        allowed = grammar.allowed(tokenizer.n_vocab)
        assert allowed[token]
        assert not allowed[[*tokenizer.end_ids]].any()
        grammar.take(token)
    assert set(np.flatnonzero(grammar.allowed(tokenizer.n_vocab))) == tokenizer.end_ids


def test_white_space_has_an_end(tokenizer: Tokenizer) -> None:
    grammar = Grammars(tokenizer).json({"type": "object"})
    [brace], [line], [space] = (tokenizer.encode(text) for text in ("{", "\n", " "))
    for token in (brace, line, *24 * [space]):
        grammar.take(token)
    allowed = grammar.allowed(tokenizer.n_vocab)
    assert not allowed[[line, space]].any()
    assert allowed[tokenizer.encode('"')].all()


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "objekt"}, r"^Invalid type: objekt\.$"),
        ({"$ref": "#/$defs/x"}, "does not exist"),
        ({"$ref": "#"}, "no value fits it"),
        ({"$ref": "http://localhost/x"}, "must point into the schema"),
        ({"type": "string", "pattern": "("}, "A pattern of the schema is not valid: unclosed group"),
        ({"type": "string", "pattern": "(?<=a)b"}, "look-around"),
        ({"type": "string", "format": "colour"}, "Unknown format: colour"),
        ({"anyOf": []}, "Unsatisfiable schema"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "Use anyOf"),
        ({"not": {"type": "string"}}, 'Unimplemented keys: ."not".'),
        (nested(200), "nested too deeply"),
        ({"anyOf": [{"type": "integer", "multipleOf": each} for each in (997, 991, 983, 977)]}, "multipleOf of 9"),
        ({"type": "integer", "multipleOf": 900_001}, "at most 1000"),
        ({"type": "number", "multipleOf": 1e-300}, "at most 1000"),
        ({"properties": {f"p{number}": True for number in range(400)}}, "400 optional properties"),
        ({"enum": [f"choice {number}" for number in range(5000)]}, "at most 64000 are supported"),
    ],
)
def test_schemas_that_cannot_be_followed(tokenizer: Tokenizer, schema: Any, said: str) -> None:
    with pytest.raises(FeatherbackError, match=said) as caught:
        Grammars(tokenizer).json(schema)
    assert "\n" not in str(caught.value)


def test_a_property_may_be_named_like_a_keyword(tokenizer: Tokenizer) -> None:
    Grammars(tokenizer).json({"properties": {"multipleOf": {"type": "integer", "multipleOf": 0.5}, "properties": True}})


def test_copies_are_independent(tokenizer: Tokenizer) -> None:
    first = Grammars(tokenizer).json({"type": "object"})
    second = first.copy()
    before = second.allowed(tokenizer.n_vocab)
    first.take(tokenizer.encode("{")[0])
    np.testing.assert_array_equal(second.allowed(tokenizer.n_vocab), before)
    assert (first.allowed(tokenizer.n_vocab) != before).any()


def test_without_an_end_token(tokenizer: Tokenizer) -> None:
    class Endless:
        end_ids = frozenset[int]()

    with pytest.raises(FeatherbackError, match="needs a token that ends an answer"):
        Grammars(Endless())  # type: ignore[arg-type]


MEASURED = """
import sys
from featherback.data.tokenizers.loader import load_tokenizer
from featherback.engine import kernels
from featherback.infer import grammar
tokenizer = load_tokenizer(sys.argv[1])
before = kernels.memory_now()[1]
grammars = grammar.Grammars(tokenizer)
held = [grammars.json({"type": "object"}) for _ in range(4)]
print(kernels.memory_now()[1] - before, grammar.Grammars.nbytes(tokenizer))
"""


@pytest.mark.parametrize("count", tiers.some([50_000, 150_000], 1))
def test_the_tables_take_no_more_than_the_account_says(tmp_path: Path, count: int) -> None:
    random, metadata = np.random.default_rng(0), byte_level_metadata()
    letters = np.array([*"etaoinshrdluETAO0123456789._-"])
    words = {"".join(random.choice(letters, length)) for length in random.integers(3, 14, count)}
    metadata["tokenizer.ggml.tokens"] += sorted(words)  # type: ignore[operator]
    types = metadata["tokenizer.ggml.token_type"]
    metadata["tokenizer.ggml.token_type"] = np.concatenate([types, np.ones(len(words), np.int32)])
    path = write_tiny(tmp_path / "large.gguf", tiny(TINY_LLAMA, vocab_size=N_VOCAB + len(words)), metadata=metadata)
    done = subprocess.run([sys.executable, "-c", MEASURED, path], capture_output=True, text=True, check=True)
    taken, said = map(int, done.stdout.split())
    assert 0.3 * said < taken <= said
