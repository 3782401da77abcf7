"""`make fuzz`: read mutated versions of every input file. Exit status 1 if any of them is handled badly.

python -m tests.fuzz [--cases N] [--seed S] [--first F] [KIND ...]
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.kinds import KINDS
from tests.fuzz.run import fuzz


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--cases", type=int, default=2000, help="of each kind")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed makes the same cases")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    chosen = parser.parse_args()
    bad = 0
    for kind in chosen.kinds or KINDS:
        outcomes, findings = fuzz(kind, chosen.seed, chosen.cases, chosen.first)
        counts = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
        print(f"{kind:<18} seed {chosen.seed}: {counts}, {len(findings)} handled badly", flush=True)
        for case, what in findings.items():
            print(
                f"  case {case}: {what}\n    again: python -m tests.fuzz {kind} --seed {chosen.seed} "
                f"--first {case} --cases 1",
                flush=True,
            )
        bad += len(findings)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
