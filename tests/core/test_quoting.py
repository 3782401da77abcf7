"""Printed commands can be pasted into a shell, whatever bytes the names in them have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from featherback.core.naming import argument
from featherback.core.system.windows import shells
from featherback.core.terminal import clean, quoted

NAMES = [
    b"plain.gguf",
    b"two words",
    b"it's",
    b"caf\xe9.gguf",
    b"\xff",
    b"\xe9" + b"12",  # digits after an escape
    b"caf\xc3\xa9 \xe9 it's",
    b"tab\tand\nline\n",
    b"back\\slash \xff",
    b"\x1b[31mred",
    b'$HOME `id` \xff "$(id)"',
    "\u202egnp.exe \u2028 日本".encode(),
    b"\xed\xa0\x80",  # a surrogate, encoded
    b"-\xff",
    b"!\xff!!",
]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize("name", NAMES)
def test_a_command_names_the_same_file_in_a_shell(name: bytes, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    shown = clean(quoted("printf", "%s\\0", os.fsdecode(name), "end"))
    shown.encode()  # a terminal can show it
    done = subprocess.run([shell, "-c", shown], capture_output=True, check=True)
    assert done.stdout.split(b"\0")[:2] == [name, b"end"]


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        (r"run\report.html", r"run\report.html"),
        (r"C:\users\Jörg Müller", r'"C:\users\Jörg Müller"'),
        ("two words\\", '"two words\\\\"'),
        ('say "no"', '"say \\"no\\""'),
        ("a&b", '"a&b"'),
        ("", '""'),
    ],
)
def test_words_of_windows(word: str, quoted: str) -> None:
    assert shells.quote(word, lambda _: False) == quoted
    if os.name == "nt":
        done = subprocess.run(f'{sys.executable} -c "import sys; print(ascii(sys.argv[1]))" {quoted}', stdout=-1)
        assert done.stdout.decode().strip() == ascii(word)


def test_an_option_that_a_message_names() -> None:
    assert argument("out", os.fsdecode(b"caf\xe9")) == "--out $'caf\\351'"
    assert argument("out", "two words") == "--out 'two words'"
