"""The stage that decides, by card again, on what the stages before have found."""

from __future__ import annotations

from collections.abc import Mapping

from millrace import Context, KeyedProcess, arrival, days, side_output, value_state
from millrace.batch import Batch
from millrace_apps.fraud.contracts.events import Decision, Label
from millrace_apps.fraud.model.outcomes import Outcome, Outcomes, counted
from millrace_apps.fraud.processes.control_group import ControlGroup
from millrace_apps.fraud.processes.judging import JUDGED_DAYS, Issued, TrainedUntil
from millrace_apps.fraud.processes.scorer import Observed, Scorer, trained_until
from millrace_apps.fraud.processes.stages import Enriched, Forgotten, Labelled, LaterStage, Passed


class DecisionStage(LaterStage, KeyedProcess[Passed, Decision]):
    """Decides on what the stages before found, by card again.

    Args:
        scorer: A model; None: rules only.
        challenger: A model in shadow.
        measures: Whether scores are kept, to be judged by the labels that come later.
        control_group: Who is let through though it would be blocked.
    """

    name = "DecisionDesk"
    order = arrival(commutes=True)

    issued = value_state(Issued, ttl=days(JUDGED_DAYS))
    outcomes = side_output(Outcomes)

    def __init__(
        self,
        scorer: Scorer | None = None,
        challenger: Scorer | None = None,
        *,
        measures: bool = False,
        control_group: ControlGroup | None = None,
    ) -> None:
        super().__init__(scorer, challenger, control_group)
        self._measures = measures

    def process(self, event: Passed, ctx: Context) -> None:
        """Decide on one transaction, or judge the scores of one by a label."""
        if not isinstance(event, Enriched):
            if isinstance(event, Labelled):
                self._judge(event.label, ctx, newest=event.newest)
            elif isinstance(event, Forgotten):
                self.forget_key()
            return
        seen = event.observed()
        decision, alert = self.decided(*next(self.scored([seen])))
        ctx.emit(decision)
        if alert is not None:
            ctx.output(self.alerts, alert)
        if self._measures and decision.kind == "purchase":
            kept = self.issued.value or Issued()
            for part in counted(kept.issue(decision, seen, self._trained_until(), is_fraud=event.is_fraud)):
                ctx.output(self.outcomes, part)
            self.issued.value = kept

    def on_late(self, event: Passed, ctx: Context) -> None:
        """Handle a label: it has the time of its transaction, which is past."""
        self.process(event, ctx)

    def _judge(self, label: Label, ctx: Context, *, newest: bool) -> None:
        kept = self.issued.value
        if kept is None or not newest:
            return
        found = kept.say(label)
        for part in counted(found):
            ctx.output(self.outcomes, part, on_time=False)
        if found:
            self.issued.value = kept

    def _trained_until(self) -> TrainedUntil:
        return TrainedUntil(*map(trained_until, (self._scorer, self._challenger)))

    def process_batch(self, batch: Batch[Passed]) -> None:
        """Decide on all transactions of a batch: a model is asked once."""
        told = [(row, event) for row, event in enumerate(batch.events) if isinstance(event, Enriched)]
        rows, seen = [row for row, _ in told], [event.observed() for _, event in told]
        found = [self.decided(*one) for one in self.scored(seen)]
        batch.emit([decision for decision, _ in found], rows)
        alerts = [(alert, row) for row, (_, alert) in zip(rows, found, strict=True) if alert is not None]
        batch.output(self.alerts, [alert for alert, _ in alerts], [row for _, row in alerts])
        if self._measures:
            self._measure(batch, {row: (one, d) for row, one, (d, _) in zip(rows, seen, found, strict=True)})

    def _measure(self, batch: Batch[Passed], decided: Mapping[int, tuple[Observed, Decision]]) -> None:
        """Keep the scores of a batch, and judge by its labels, as :meth:`process` does one by one.

        All that is counted leaves at once, as what came of the last row.
        """
        until, of_key = self._trained_until(), batch.key_of_row.tolist()
        kept = [value or Issued() for value in batch.read(self.issued)]
        outcomes: list[Outcome] = []
        for row, event in enumerate(batch.events):
            issued = kept[of_key[row]]
            # What is to be forgotten comes as a correction does, and so never in a batch.
            if not isinstance(event, Enriched):
                if isinstance(event, Labelled) and event.newest:
                    outcomes += issued.say(event.label)
                continue
            observed, decision = decided[row]
            if decision.kind == "purchase":
                outcomes += issued.issue(decision, observed, until, is_fraud=event.is_fraud)
        parts = counted(outcomes)
        batch.output(self.outcomes, parts, [len(batch) - 1] * len(parts))
        batch.write(self.issued, kept)
