"""Subtitles (.srt, .vtt): their text, without numbers, times and formats."""

from __future__ import annotations

import re
from collections.abc import Iterator

from featherback.data.containers.base import Document, Texts
from featherback.data.containers.text import read_text
from featherback.data.inputs import Input

_TIME = re.compile(r"(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}\s+-->\s+(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}(?:\s.*)?$")
_FIRST = re.compile(rb"(?:\d+\s*\r?\n)?(?:\d{1,3}:)?\d{1,2}:\d{2}[.,]\d{1,3}[ \t]+-->")
_FORMAT = re.compile(r"</?(?:[bicu]|font|v|ruby|rt|lang|\d{2}:[\d:.]+)\b[^<>]*>|\{\\[^{}]*\}", re.IGNORECASE)


class Subtitles(Texts):
    title = "subtitles"
    suffixes = (".srt", ".vtt")

    def recognises_content(self, begin: bytes) -> bool:
        return bool(_FIRST.match(begin) or re.match(rb"WEBVTT(?:[ \t][^\n]*)?\r?\n", begin))

    def read(self, data: Input) -> Iterator[Document]:
        yield Document(data.name, _words(read_text(data)))


CONTAINER = Subtitles()


def _words(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines that follow a block's time. A line that is shown twice in succession is not repeated."""
    in_text, before = False, ""
    for line in lines:
        text = line.strip()
        if _TIME.match(text):
            in_text = True
        elif not text:
            in_text = False
        elif in_text and (shown := _FORMAT.sub("", text).strip()) and shown != before:
            before = shown
            yield shown + "\n"
