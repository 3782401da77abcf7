"""Answers that must be JSON of a schema: random logits, judged by the standard library's parser."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from featherback.data.tokenizers.loader import load_tokenizer
from featherback.data.tokenizers.tokenizer import Tokenizer
from featherback.engine.host.process_tree import sizes, tree, tree_pss
from featherback.errors import FeatherbackError
from featherback.infer.grammar import MEMORY_IN_BUDGET, PROCESS, Constrained, Grammars
from featherback.infer.sampler import Sampler
from tests.support.systems import limits_programs, lists_processes
from tests.support.tiers import some
from tests.support.tiny_chat import write_tiny_chat

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


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Iterator[Grammars]:
    opened = Grammars(tokenizer, MEMORY_IN_BUDGET)
    yield opened
    opened.close()


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
def test_random_logits_give_json_of_the_schema(tokenizer: Tokenizer, grammars: Grammars, temperature: float) -> None:
    for seed in range(10):
        sampler = Sampler(temperature, top_p=0.95, top_k=40, seed=seed)
        text = drawn(tokenizer, Constrained(sampler, grammars.json(BILL).answer(0)), seed)
        assert is_bill(text), text
        if temperature:  # without the grammar, they do not: the check can fail
            assert not is_bill(drawn(tokenizer, sampler, seed))


REFERRED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tree": {
            "anyOf": [
                {"type": "string", "pattern": "^a\\!$"},
                {"type": "object", "properties": {"left": {"$ref": "#/properties/tree/anyOf/0"}}, "required": ["left"]},
            ]
        }
    },
    "required": ["tree"],
    "additionalProperties": False,
}
REFERRED["properties"]["tree"]["anyOf"][1]["additionalProperties"] = False


def test_references_into_lists_and_escapes_in_patterns(tokenizer: Tokenizer, grammars: Grammars) -> None:
    found = set[str]()
    for seed in range(12):
        text = drawn(tokenizer, Constrained(Sampler(0.8, seed=seed), grammars.json(REFERRED).answer(0)), seed)
        found.add(json.dumps(json.loads(text)))
    assert found == {'{"tree": "a!"}', '{"tree": {"left": "a!"}}'}


def test_a_value_can_end_only_where_it_is_complete(tokenizer: Tokenizer, grammars: Grammars) -> None:
    grammar = grammars.json({"type": "object"}).answer(0)
    for token in tokenizer.encode('{"a": [1, {"b": null}], "ü": "ö"}'):
        allowed = grammar.allowed(tokenizer.n_vocab)
        assert allowed[token]
        assert not allowed[[*tokenizer.end_ids]].any()
        grammar.take(token)
    assert set(np.flatnonzero(grammar.allowed(tokenizer.n_vocab))) == tokenizer.end_ids


def test_white_space_has_an_end(tokenizer: Tokenizer, grammars: Grammars) -> None:
    grammar = grammars.json({"type": "object"}).answer(0)
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
        ({"enum": [f"choice {number}" for number in range(5000)]}, "at most 64000 are supported"),
    ],
)
def test_schemas_that_cannot_be_followed(grammars: Grammars, schema: Any, said: str) -> None:
    with pytest.raises(FeatherbackError, match=said) as caught:
        grammars.json(schema)
    assert "\n" not in str(caught.value)


PRIMES = (997, 991, 983, 977, 971, 967, 953, 947)
MULTIPLES = [{"type": "integer", "multipleOf": prime} for prime in PRIMES]


def optional(count: int) -> dict[str, Any]:
    """A schema of an object with optional properties."""
    return {f"property {number}": {"type": "string"} for number in range(count)}


HOSTILE: dict[str, Any] = {
    "products": {"properties": {f"p{n}": {"allOf": MULTIPLES[n : n + 2]} for n in range(0, 8, 2)}},
    "products beside a zero": {"properties": {"p": {"allOf": MULTIPLES[:2]}}, "$defs": {"x": {"multipleOf": 0}}},
    "products beside a negative": {"anyOf": MULTIPLES, "$defs": {"x": {"multipleOf": -1}}},
    "a large multiple": {"type": "integer", "multipleOf": 900_001},
    "optional properties": {"properties": optional(1000)},
    "required twice": {"properties": optional(1000), "required": ["property 0"] * 1000},
    "required names": {"required": [f"property {number}" for number in range(3000)]},
    "choices": {"allOf": [{"anyOf": [{"properties": {f"{x}{n}": True}} for x in "abc"]} for n in range(12)]},
    "a long text": {"const": "lorem ipsum " * 5000},
    "letters": {"type": "string", "pattern": "^\\p{L}{1,500}\\P{Lu}{3,400}$"},
    "words": {"type": "string", "pattern": "^(\\w+\\s?){1,300}$"},
    "counted thrice": {"type": "string", "pattern": "^((a{1,100}){1,100}){1,100}$"},
    "a distant letter": {"type": "string", "pattern": "^(a|b)*a(a|b){20}$"},
    "a long list": {"type": "array", "items": {"type": "string"}, "minItems": 10**9, "maxItems": 10**9},
    "a long string": {"type": "string", "minLength": 10**9, "maxLength": 10**9},
    "large numbers": {"type": "number", "minimum": 1e308, "maximum": 1.7e308},
    "a number of many digits": {"type": "integer", "minimum": 10**4000},
    "recursion": {
        "$ref": "#/$defs/n",
        "$defs": {"n": {"type": "array", "items": {"anyOf": [{"$ref": "#/$defs/n"}] * 2}}},
    },
}


SLOW = {"letters", "a long string", "a long list", "a distant letter"}
"""Schemas of seconds; "words" and "counted thrice" stand for them in the default tier."""


@lists_processes
@pytest.mark.parametrize("name", some(sorted(HOSTILE, key=SLOW.__contains__), len(HOSTILE) - len(SLOW)))
def test_no_schema_takes_more_than_its_process_may(tokenizer: Tokenizer, grammars: Grammars, name: str) -> None:
    """The process ends at its limit, or keeps it; and the next schema is followed as if nothing had happened."""
    before, random = private_bytes(), np.random.default_rng(0)
    with contextlib.suppress(FeatherbackError):
        schema = grammars.json(HOSTILE[name])
        answer = schema.answer(0)
        for _ in range(60):
            token = int(random.choice(np.flatnonzero(answer.allowed(tokenizer.n_vocab))))
            if token in tokenizer.end_ids:
                break
            answer.take(token)
            assert private_bytes() - before <= MEMORY_IN_BUDGET + PROCESS
    assert is_bill(drawn(tokenizer, Constrained(Sampler(), grammars.json(BILL).answer(0)), 0))


def private_bytes() -> int:
    """What this process and its descendants hold, without the memory of this process."""
    return tree_pss(os.getpid()) - sizes(os.getpid(), "smaps_rollup")["Pss"]


@limits_programs
def test_the_error_names_the_limit(grammars: Grammars) -> None:
    with pytest.raises(FeatherbackError, match=r"^The schema needs more than 7 MB of memory and was stopped\.$"):
        grammars.json(HOSTILE["products"])


@limits_programs
def test_a_schema_that_takes_too_long_is_stopped(tokenizer: Tokenizer) -> None:
    grammars = Grammars(tokenizer, 8 * 10**9)
    with pytest.raises(FeatherbackError, match=r"^The schema needs more than 1 s of CPU time and was stopped\.$"):
        grammars.json(HOSTILE["products"])
    grammars.close()


def test_a_schema_can_be_stopped_while_it_is_compiled(tokenizer: Tokenizer) -> None:
    grammars = Grammars(tokenizer, 8 * 10**9)
    compiling = grammars.start(HOSTILE["products"])
    assert compiling.close() == -signal.SIGKILL
    assert is_bill(drawn(tokenizer, Constrained(Sampler(), grammars.json(BILL).answer(0)), 0))
    grammars.close()


@lists_processes
def test_processes_end_with_what_they_are_for(grammars: Grammars) -> None:
    before = len([*tree(os.getpid())])
    schema = grammars.json(BILL)
    assert len([*tree(os.getpid())]) == before + 1
    del schema
    assert len([*tree(os.getpid())]) == before


def test_answers_of_one_schema_are_followed_together(tokenizer: Tokenizer, grammars: Grammars) -> None:
    """Each token is taken before anybody asks for the next masks, also where text is forced and must be encoded."""
    required = {f"property {number}": {"type": "boolean"} for number in range(20)}
    schema = grammars.json(
        {"type": "object", "properties": required, "required": [*required], "additionalProperties": False}, 3
    )
    answers, texts, random = [schema.answer(number) for number in range(3)], [list[int]() for _ in range(3)], Sampler(1)
    rng = np.random.default_rng(0)
    while open_answers := [each for each in answers if not tokenizer.end_ids & {*texts[each.number]}]:
        for each in open_answers:
            texts[each.number].append(Constrained(random, each)(rng.normal(0, 3, tokenizer.n_vocab).astype(np.float32)))
    for ids in texts:
        assert json.loads(tokenizer.decode(ids[:-1])).keys() == required.keys()


def test_answers_are_independent(tokenizer: Tokenizer, grammars: Grammars) -> None:
    schema = grammars.json({"type": "object"}, 2)
    first, second = schema.answer(0), schema.answer(1)
    before = second.allowed(tokenizer.n_vocab)
    first.take(tokenizer.encode("{")[0])
    np.testing.assert_array_equal(second.allowed(tokenizer.n_vocab), before)
    assert (first.allowed(tokenizer.n_vocab) != before).any()


def test_without_an_end_token(tokenizer: Tokenizer) -> None:
    class Endless:
        end_ids = frozenset[int]()

    with pytest.raises(FeatherbackError, match="needs a token that ends an answer"):
        Grammars(Endless())  # type: ignore[arg-type]
