"""Run the mutants: ``make mutants``, or ``python -m tests.mutants --only session``.

Each mutant is a small change of the code that some tests must notice. Where they do not, a feature can break
without anybody being told. Everything happens in scratch copies; the working tree is only read.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from millrace.console.report import print_table
from tests.mutants.areas import AREAS
from tests.mutants.mutant import Mutant
from tests.mutants.runner import CannotRun, Result, run_all

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run mutants; the exit code is 1 where one survived, or its place in the list is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description="Run mutants of the code.")
    parser.add_argument("--only", default="", metavar="TEXT",
                        help="those with this in their name, file or area")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many at a time (default 1)")
    options = parser.parse_args(arguments)
    if options.jobs < 1:
        return _refuse("--jobs is at least 1")
    mutants = [m for area, of in AREAS.items() for m in of if _is_meant(options.only, area, m)]
    if not mutants:
        return _refuse(f"no mutant has '{options.only}' in its name, file or area; --list shows all")
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    if options.list:
        rows = [(m.name, m.file, m.breaks, "yes" if m.known_survivor else "") for m in mutants]
        print_table(
            f"{len(mutants)} mutants", ("mutant", "file", "breaks", "known to survive"), rows, console
        )
        return 0
    try:
        results = run_all(ROOT, mutants, options.jobs, lambda line: print(line, flush=True))
    except CannotRun as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        print("mutants: interrupted; nothing was left behind", file=sys.stderr)
        return 130
    _show(results, console)
    return 0 if all(result.is_good for result in results) else 1


def _is_meant(text: str, area: str, mutant: Mutant) -> bool:
    return any(text in where for where in (mutant.name, mutant.file, area))


def _show(results: Sequence[Result], console: Console) -> None:
    rows = [
        (r.mutant.name, r.mutant.breaks, r.outcome, f"{r.seconds:.1f}", r.detail.rpartition("/")[2])
        for r in results
    ]
    styles = ["" if r.is_good else "bold red" for r in results]
    columns = ("mutant", "breaks", "outcome", "s", "by, or why")
    print_table("mutants", columns, rows, console, right=("s",), styles=styles)
    print(", ".join(f"{count} {outcome}" for outcome, count in Counter(r.outcome for r in results).items()))


def _refuse(why: str) -> int:
    print(f"mutants: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
