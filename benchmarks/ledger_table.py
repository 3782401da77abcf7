"""The live set of a step as a Markdown table: `python -m benchmarks.ledger_table docs/memory.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from benchmarks.synthetic import CONFIGS
from featherback.engine.backend.counting import Entry, Ledger
from featherback.engine.formats.types import TensorType
from featherback.methods import METHODS
from featherback.methods.memory.dry_run import step_ledger
from featherback.methods.memory.job import Job
from featherback.methods.memory.plan import Plan

MARKER = "<!-- ledger -->"
_END = "<!-- end of ledger -->"


def ledger() -> Ledger:
    """A step of the paper's setting: Qwen2.5-0.5B, sequence 256, rank 8 on all seven projections, smallest tiles."""
    job = Job.of_shape(CONFIGS["qwen2.5-0.5b"], TensorType.Q4_0, method=METHODS["mesp"])
    return step_ledger(job, Plan(tokens=256, mlp_tile=256, vocab_tile=256))


def ledger_table() -> str:
    """Every array of a pass, in the order of birth; those alive at the peak are summed. Tiles alike are shown once."""
    found = ledger()
    alive = {id(entry) for entry in found.live_at_peak()}
    lines = ["| array | shape | kB | born | dies | alive at the peak |", "|---|---|---:|---:|---:|:-:|"]
    lines += [_line(entry, id(entry) in alive) for entry in shown(found)]
    lines.append(f"| **peak, at moment {found.peak_moment}** | | **{found.high_water / 1000:.1f}** | | | |")
    return "\n".join(lines)


def shown(ledger: Ledger) -> list[Entry]:
    """The entries without the repetitions of a loop: of tiles alike, one that counts."""
    alive = {id(entry) for entry in ledger.live_at_peak()}
    found: list[Entry] = []
    place: dict[tuple[object, ...], int] = {}
    group = 0
    for before, entry in zip([None, *ledger.entries], ledger.entries):
        if " tile" not in entry.name and not (before is None or " tile" not in before.name):
            group += 1
        key = (group, entry.name, entry.shape)
        if " tile" not in entry.name or key not in place:
            place[key] = len(found)
            found.append(entry)
        elif id(entry) in alive:
            found[place[key]] = entry
    return found


def _line(entry: Entry, alive: bool) -> str:
    shape = " x ".join(map(str, entry.shape))
    kind = {2: "bf16", 4: "fp32"}[entry.dtype.itemsize]
    mark = "yes" if alive else ""
    return f"| {entry.name} | {shape} {kind} | {entry.nbytes / 1000:.1f} | {entry.born} | {entry.dies} | {mark} |"


def page_with_table(text: str) -> str:
    """Replace the text between the markers by the table."""
    table = f"{MARKER}\n{ledger_table()}\n{_END}"
    return re.sub(f"{re.escape(MARKER)}.*?{re.escape(_END)}", lambda _: table, text, flags=re.DOTALL)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(page_with_table(page.read_text(encoding="utf-8")), encoding="utf-8")
