"""The rewards that suit data, for a comparison that names none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from featherback.core.naming import argument
from featherback.errors import FeatherbackError
from featherback.runs.rewards.base import right_answers

TEXTS = ("exact", "token_f1", "rouge_l")
NUMBERS = ("exact", "numeric")
_NUMBER = re.compile(r"\s*[-+]?[\d,]*\.?\d+\s*")


def suited(records: Sequence[Mapping[str, Any]], column: str = "") -> tuple[str, ...]:
    """Return the rewards for records with right answers: those for numbers if all answers are numbers.

    `column`: of the right answers, "" for the usual ones. Raises FeatherbackError if a record has none.
    """
    try:
        rights = [right for record in records for right in right_answers(record, column)]
    except FeatherbackError as error:
        raise FeatherbackError(
            f"{error} To judge answers in another way: {argument('reward', 'regex:PATTERN')}, for example."
        ) from None
    kinds = NUMBERS if all(map(_NUMBER.fullmatch, rights)) else TEXTS
    return tuple(f"{kind}:{column}" if column else kind for kind in kinds)
