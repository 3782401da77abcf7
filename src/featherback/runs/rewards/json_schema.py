"""1 if the answer is JSON that fits a schema; else 0. `json_schema:FILE`. Needs the package jsonschema."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from featherback.errors import FeatherbackError
from featherback.runs.rewards.base import Answer, Limits, Reward


class JSONSchema(Reward):
    needs: ClassVar[str | None] = "FILE"

    def __init__(self, argument: str, limits: Limits) -> None:
        super().__init__(argument, limits)
        if find_spec("jsonschema") is None:
            raise FeatherbackError(
                f"The reward json_schema:{argument} needs jsonschema, which is not installed: pip install jsonschema."
            )
        from jsonschema import exceptions, validators
        from referencing import Registry

        try:
            schema = json.loads(Path(argument).read_text(encoding="utf-8"))
            kind = validators.validator_for(schema)
            kind.check_schema(schema)
        except OSError as error:
            raise FeatherbackError(f"The schema {argument} cannot be read: {error.strerror}.") from None
        except (ValueError, AttributeError) as error:
            raise FeatherbackError(f"The schema {argument} is not JSON: {error}.") from None
        except exceptions.SchemaError as error:
            raise FeatherbackError(f"{argument} is not a valid JSON schema: {error.message}.") from None
        self._validator = kind(schema, registry=Registry())  # an empty registry: nothing is fetched

    def judge(self, answer: Answer) -> float:
        try:
            return float(self._validator.is_valid(json.loads(answer.text)))
        except (ValueError, RecursionError):
            return 0.0


REWARD = JSONSchema
