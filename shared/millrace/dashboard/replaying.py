"""Dead letters sent again from a page: what ``millrace dlq replay`` does."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from millrace.dashboard.page import Action, ActionRefused, Field
from millrace.dashboard.views import Note, View

if TYPE_CHECKING:
    from millrace.dashboard.data import AppData
    from millrace.dead_letters.replay import Summary

_TABLE: Final = "dead_letters"


def _chosen(values: Mapping[str, str]) -> Any:
    from millrace.dead_letters.letters import Selection

    reason = values.get("reason", "").strip()
    if not reason:
        raise ActionRefused("say which reason")
    return Selection(reasons=(reason,))


def _said(summary: Summary, done: str) -> str:
    left = "; ".join(f"{count:,} left out: {why}" for why, count in sorted(summary.skipped.items()))
    failed = f"; {len(summary.failed):,} failed" if summary.failed else ""
    return f"{summary.sent:,} of {summary.seen:,} {done}{failed}" + (f" ({left})" if left else "")


def look(data: AppData, values: Mapping[str, str]) -> View:
    """Say what would be sent again; nothing is."""
    from millrace.dead_letters.journal import TABLE, Journal
    from millrace.dead_letters.letters import DeadLetterTable
    from millrace.dead_letters.replay import Plan, Replay

    journal = Journal(str(data.root / "tables" / TABLE), "look")
    letters = DeadLetterTable(str(data.root / "tables" / _TABLE)).read(_chosen(values))
    _, summary = Replay(Plan(), journal, now=data.now_ms).preview(letters, keep=0)
    return Note(_said(summary, "would be sent"))


def replay(data: AppData, values: Mapping[str, str]) -> str:
    """Send the dead letters of a reason again, each once, and say what became of them."""
    from millrace.dead_letters.journal import TABLE, Journal
    from millrace.dead_letters.kafka import KafkaOriginals, KafkaSender
    from millrace.dead_letters.letters import DeadLetterTable
    from millrace.dead_letters.replay import Plan, Replay
    from millrace.operations.sending import reachable

    chosen, kafka = _chosen(values), data.settings.kafka
    if kafka.bootstrap is None:
        raise ActionRefused("no broker is named: give the dashboard --bootstrap")
    table = DeadLetterTable(str(data.root / "tables" / _TABLE))
    bootstrap, options = reachable(kafka), dict(kafka.options)
    journal = Journal(str(data.root / "tables" / TABLE), uuid.uuid4().hex)
    originals = KafkaOriginals(bootstrap, options)
    try:
        run = Replay(Plan(), journal, originals, now=data.now_ms)
        return _said(run.run(table.read(chosen), KafkaSender(bootstrap, options)), "sent")
    finally:
        originals.close()


REPLAY: Final = Action(
    "replay-letters",
    "Replay",
    (Field("reason", "Reason", hint="as above, e.g. process_error"),),
    replay,
    look,
    "Sends the dead letters of a reason to the topic that they came by, each once; replays are recorded.",
)
