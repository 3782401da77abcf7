"""Run every answer of the demo's data in a scratch folder and compare the effect with the request.

The table below says, for each form of command, which words must ask for it and what it must do, computed in
Python without the command.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from featherback.data.demo import ABOUT, HELD_OUT, PROMPTS, TRAIN, pairs
from tests.data.test_readers import read
from tests.support.sweep import sweep

LINES = [f"abc,{n * 37 % 101},Row {n},x{n % 7},end" for n in range(1, 121)]
ORDINALS = {"third": "3", "fourth": "4"}

ALL = pairs(TRAIN) + pairs(HELD_OUT)


# --- the scratch folder ---


def content(name, words=(), numbers=False):
    """Return a text of 120 lines. Every fifth line contains the words to search for, and one line is repeated."""
    lines = [f"{name} {line}" for line in LINES]
    for i in range(0, len(lines), 5):
        lines[i] += " " + " ".join(words)
        lines[i + 1] += " " + " ".join(words).upper()
    if numbers:
        lines = [str(n * 37 % 1009) for n in range(120)]
    return "\n".join([*lines, lines[3]]) + "\n"


def make_file(path, words=(), numbers=False):
    if path.name.endswith(".tar.gz"):
        inside = path.with_name("inside")
        make_folder(inside)
        with tarfile.open(path, "w:gz") as archive:
            archive.add(inside, arcname="inside")
        shutil.rmtree(inside)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content(path.name, words, numbers))


def make_folder(path, words=(), wanted=".txt", huge=False):
    make_file(path / "a.txt", words)
    make_file(path / "deep" / f"b{wanted}")
    make_file(path / ".hidden", words)
    if huge:
        with (path / "deep" / "huge.bin").open("wb") as file:
            file.truncate(600 * 2**20)  # takes no space
    os.utime(path / "a.txt", (1e9, 1e9))


def looks_like_a_folder(name):
    return "." not in name


# --- what each command must do ---


@dataclass
class Run:
    """A command that was run: its output, and the scratch folder before (text of files) and after."""

    out: str
    box: Path
    before: dict[str, str]
    arguments: dict[str, str]

    def __getitem__(self, name):
        return self.arguments[name]

    def lines(self, name="file"):
        return self.before[self[name]].splitlines(keepends=True)

    def text(self, name):
        return (self.box / self[name]).read_text()

    def arrived(self):
        """Return the content at the file's destination, which is a new name or a folder."""
        place = self.box / self["to"]
        return (place / self["file"] if looks_like_a_folder(self["to"]) else place).read_text()

    def archived(self, name="file"):
        with tarfile.open(self.box / self[name]) as archive:
            return set(archive.getnames())

    def gone(self, name="file"):
        return not os.path.lexists(self.box / self[name])

    def below(self, name="dir"):
        """Return all paths in a folder, in the form that `find` prints."""
        top = self.box / self[name]
        return {str(path.relative_to(self.box)) for path in [top, *top.rglob("*")]}

    def where(self, test):
        """Return the paths whose status passes the test."""
        return {x for x in self.below() if test((self.box / x).stat())}


def fields(run, number):
    return "".join(line.rstrip("\n").split(",")[number - 1] + "\n" for line in run.lines())


def matching(run, test):
    return "".join(line for line in run.lines() if test(line))


def hits(run):
    """Files in the folder that hold the word."""
    files = [p for p in (run.box / run["dir"]).rglob("*") if p.is_file()]
    return {str(p.relative_to(run.box)) for p in files if run["word"] in p.read_text()}


def order(run, key):
    names = [p for p in (run.box / run["dir"]).iterdir() if not p.name.startswith(".")]
    return "".join(p.name + "\n" for p in sorted(names, key=lambda p: key(p.stat()), reverse=True))


NAME = r"[\w-]+\.[\w.]+"
F, D, W, N = f"(?P<file>{NAME})", r"(?P<dir>[\w-]+)", r'"(?P<word>\w+)"', r"(?P<n>\d+)"
TO = r"(?P<to>[\w./-]+)"

# command: (words that ask for it, check of a Run)
FORMS: dict[str, tuple[str, Callable[[Run], bool]]] = {
    f"head -n {N} {F}": ("first|top", lambda r: r.out == "".join(r.lines()[: int(r["n"])])),
    f"tail -n {N} {F}": ("last|final", lambda r: r.out == "".join(r.lines()[-int(r["n"]) :])),
    f"wc -l {F}": ("lines", lambda r: r.out.split()[0] == str(len(r.lines()))),
    f"wc -w {F}": ("words", lambda r: r.out.split()[0] == str(len("".join(r.lines()).split()))),
    f"grep {W} {F}": ("(?i)lines? .*(contain|with)|search", lambda r: r.out == matching(r, lambda x: r["word"] in x)),
    f"grep -i {W} {F}": (
        "ignoring case|upper or lower|regardless of case",
        lambda r: r.out == matching(r, lambda x: r["word"].lower() in x.lower()),
    ),
    f"grep -c {W} {F}": ("(?i)how many lines|count", lambda r: r.out == f"{sum(r['word'] in x for x in r.lines())}\n"),
    f"grep -v {W} {F}": (
        "(?i)\\bnot\\b|without|leave out",
        lambda r: r.out == matching(r, lambda x: r["word"] not in x),
    ),
    f"grep -r {W} {D}": ("all files|every file", lambda r: {x.split(":")[0] for x in r.out.splitlines()} == hits(r)),
    f"sort {F}": ("(?i)sort|alphabetical", lambda r: r.out == "".join(sorted(r.lines()))),
    f"sort -n {F}": ("number|numeric", lambda r: r.out == "".join(sorted(r.lines(), key=int))),
    f"cp {F} {TO}": ("(?i)copy", lambda r: r.arrived() == r.text("file")),
    f"mv {F} {TO}": ("(?i)rename|move|change the name", lambda r: r.gone() and r.arrived() == r.before[r["file"]]),
    f"rm {F}": ("(?i)delete|remove|get rid", lambda r: r.gone()),
    f"rm -r {D}": ("everything|all its contents|all that is in it", lambda r: r.gone("dir")),
    f"mkdir {TO}": ("(?i)folder|directory", lambda r: (r.box / r["to"]).is_dir()),
    f"ls -a {D}": ("hidden", lambda r: set(r.out.split()) == {".", "..", "a.txt", "deep", ".hidden"}),
    f"ls -l {D}": ("detail|long format|permissions", lambda r: " a.txt\n" in r.out and "rw" in r.out),
    f"ls -t {D}": ("newest", lambda r: r.out == order(r, lambda s: s.st_mtime)),
    rf'find {D} -name "\*(?P<end>\.\w+)"': (
        "(?i)find|where",
        lambda r: set(r.out.split()) == {x for x in r.below() if x.endswith(r["end"])},
    ),
    rf"find {D} -size \+{N}M": (
        "larger|bigger",
        lambda r: set(r.out.split()) == r.where(lambda s: s.st_size > int(r["n"]) * 2**20) != set(),
    ),
    f"du -sh {D}": ("(?i)space|size|how big", lambda r: re.fullmatch(rf"[\d.]+K\t{r['dir']}\n", r.out) is not None),
    f"tar -czf {TO} {D}": ("(?i)pack|compress|archive", lambda r: r.archived("to") == r.below()),
    f"tar -xzf {F}": ("(?i)unpack|extract", lambda r: (r.box / "inside" / "deep" / "b.txt").exists()),
    f"chmod \\+x {F}": ("execut|be run", lambda r: os.access(r.box / r["file"], os.X_OK)),
    r'sed -i "s/(?P<word>\w+)/(?P<new>\w+)/g" ' + F: (
        "(?i)replace|change every",
        lambda r: r.text("file") == r.before[r["file"]].replace(r["word"], r["new"]) != r.before[r["file"]],
    ),
    f'sed -n "{N}p" {F}': ("line", lambda r: r.out == r.lines()[int(r["n"]) - 1]),
    f"cut -d, -f{N} {F}": ("column", lambda r: r.out == fields(r, int(r["n"]))),
    f"diff {F} (?P<other>{NAME})": ("(?i)differen|compare", lambda r: "< " in r.out and "> " in r.out),
    f"cat {F} (?P<other>{NAME}) > {TO}": (
        "(?i)join|combine|together",
        lambda r: r.text("to") == r.before[r["file"]] + r.before[r["other"]],
    ),
}


def find_form(command):
    found = [(match, *rule) for form, rule in FORMS.items() if (match := re.fullmatch(form, command))]
    assert len(found) == 1, f"{command!r} has {len(found)} of the known forms"
    return found[0]


def run_in_scratch(command, arguments, box):
    words = [arguments[name] for name in ("word",) if name in arguments]
    for name in ("file", "other", "dir"):
        if name in arguments:
            path = box / arguments[name]
            if looks_like_a_folder(arguments[name]):
                make_folder(path, words, arguments.get("end", ".txt"), huge="-size" in command)
            else:
                make_file(path, words, numbers=command.startswith("sort -n"))
    if re.match("cp |mv ", command) and "file" in arguments and looks_like_a_folder(arguments["to"]):
        (box / arguments["to"]).mkdir()
    before = {p.name: p.read_text() for p in box.iterdir() if p.is_file() and p.suffix != ".gz"}
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        ["sh", "-c", command], cwd=box, env=environment, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.stderr == ""
    assert done.returncode == (1 if command.startswith("diff") else 0)
    return Run(done.stdout, box, before, {**arguments, "inside": "inside"})


@pytest.mark.skipif(sys.platform != "linux", reason="the commands are those of GNU/Linux")
@sweep(pytest.mark.parametrize(("request_", "command"), ALL))
def test_command_does_what_is_asked(request_, command, tmp_path_factory):
    match, asked_by, check = find_form(command)
    assert re.search(asked_by, request_), "the request does not ask for this"
    assert check(run_in_scratch(command, match.groupdict(), tmp_path_factory.mktemp("scratch")))


@sweep(pytest.mark.parametrize(("request_", "command"), ALL))
def test_request_names_every_argument(request_, command):
    match, _, _ = find_form(command)
    asked = request_
    for word, digit in ORDINALS.items():
        asked = asked.replace(word, digit)
    named = re.findall(r"[\w./-]+", asked)
    for name, value in match.groupdict().items():
        if name in ("word", "new"):
            assert f'"{value}"' in request_
        else:
            assert value in [word.rstrip(".") for word in named], f"{value} is not in the request"


def test_held_out_examples_are_new():
    learnt, tested = pairs(TRAIN), pairs(HELD_OUT)
    for column in (0, 1):
        seen = {row[column].lower() for row in learnt}
        assert len(seen) == len(learnt)
        assert len({row[column].lower() for row in tested} - seen) == len(tested)
    assert {find_form(c)[0].re for _, c in tested} == {find_form(c)[0].re for _, c in learnt}  # no new kind


def test_sizes_and_prompts():
    assert len(pairs(TRAIN)) == 200
    assert len(pairs(HELD_OUT)) == 40
    assert "200 examples" in ABOUT
    assert "tested on 40" in ABOUT
    for path in (TRAIN, HELD_OUT):
        assert len(list(read(path))) == len(pairs(path))
    assert set(PROMPTS) <= {request_ for request_, _ in pairs(HELD_OUT)}


def test_commands_are_one_line_of_plain_words():
    for request_, command in ALL:
        assert command == command.strip()
        assert len(shlex.split(command)) > 1
        assert not re.search(r"\.\.|[;|&`$\n]|(^|\s)/", command)
        assert request_ == request_.strip()
