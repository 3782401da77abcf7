"""The live set of a step as a Markdown table: `python -m featherback.bench.ledger_table docs/memory.md`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from featherback.bench.synthetic import CONFIGS
from featherback.memory.ledger import Entry, Ledger, Sizes, structured_pass
from featherback.memory.plan import Plan
from featherback.models.names import TARGETS

MARKER = "<!-- ledger -->"
_END = "<!-- end of ledger -->"

SIZES = Sizes(CONFIGS["qwen2.5-0.5b"], Plan(tokens=256, mlp_tile=256, vocab_tile=256), 8, TARGETS)
"""The paper's setting: Qwen2.5-0.5B, sequence 256, rank 8 on all seven projections."""


def ledger_table(sizes: Sizes = SIZES) -> str:
    """Every array of a pass, in the order of birth; those alive at the peak are summed."""
    ledger = structured_pass(sizes)
    peak, moment = ledger.peak()
    alive = {id(entry) for entry in ledger.live_at(moment)}
    lines = ["| array | shape | kB | born | dies | alive at the peak |", "|---|---|---:|---:|---:|:-:|"]
    lines += [_line(entry, id(entry) in alive) for entry in ledger.entries]
    lines.append(f"| **peak, at moment {moment}** | | **{peak / 1000:.1f}** | | | |")
    return "\n".join(lines)


def _line(entry: Entry, alive: bool) -> str:
    shape = " x ".join(map(str, entry.shape))
    kind = {2: "bf16", 4: "fp32"}[entry.itemsize]
    mark = "yes" if alive else ""
    return f"| {entry.name} | {shape} {kind} | {entry.nbytes / 1000:.1f} | {entry.born} | {entry.dies} | {mark} |"


def peak_entries(ledger: Ledger) -> list[Entry]:
    """The arrays alive at the peak, largest first."""
    return sorted(ledger.live_at(ledger.peak()[1]), key=lambda entry: -entry.nbytes)


def page_with_table(text: str) -> str:
    """`text` with what stands between the markers replaced by the table."""
    table = f"{MARKER}\n{ledger_table()}\n{_END}"
    return re.sub(f"{re.escape(MARKER)}.*?{re.escape(_END)}", lambda _: table, text, flags=re.DOTALL)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(page_with_table(page.read_text(encoding="utf-8")), encoding="utf-8")
