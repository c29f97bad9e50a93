"""The walk of one card payment from generator to alert, in memory: `python -m tests.payment_walk`.

It prints the files of the project whose functions run while the world of payments makes its first one, and
while the fraud app handles the first payment behind the three hundredth that it alerts on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from millrace.host.memory_chain import MemoryChain, event_of
from millrace_apps.fraud.app import app
from millrace_apps.generators.fraud import FraudProfile, simulate

ROOT: Final = Path(__file__).resolve().parents[1]
PROFILE: Final = FraudProfile(
    seed=4, start_ms=1_767_571_200_000, event_rate=0.4, cards=60, terminals=40, fraud_rate=20,
    fraud_scale=0.02, label_scale=0.002, events=3_000,
)  # fmt: skip
#: So many payments make a history before one is looked for.
_BEFORE: Final = 300

R = TypeVar("R")


def entered(work: Callable[[], R]) -> tuple[R, set[str]]:
    """Return what a function returns, and the files of the project whose functions it runs."""
    names: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            names.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        result = work()
    finally:
        sys.setprofile(None)
    paths = [Path(name).resolve() for name in names if name.endswith(".py")]
    inside = [path.relative_to(ROOT) for path in paths if path.is_relative_to(ROOT)]
    return result, {str(path) for path in inside if path.parts[0] not in ("tests", ".venv")}


def walk() -> tuple[set[str], set[str]]:
    """Return the files that a payment goes through in the generator, and in app and core."""
    _, made = entered(lambda: next(s for s in simulate(PROFILE) if s.stream == "transactions"))
    topology = app.topology(app.settings())
    chain = MemoryChain(topology)
    payments = (s.event for s in simulate(PROFILE) if s.stream == "transactions")
    for number, payment in enumerate(payments):
        event = event_of(topology, payment)
        emitted, handled = entered(lambda event=event: chain.run_batch([event]))  # type: ignore[misc]
        if number > _BEFORE and any(e.output == "alerts" for e in emitted):
            return made, handled
    raise AssertionError("no payment is alerted on")


if __name__ == "__main__":
    for found in (generator_and_app := walk()):
        print(*sorted(found), sep="\n", end="\n\n")
    print(f"{len(set.union(*generator_and_app))} files")
