"""Person funnels in the process of persons: takes marks, writes rows, forgets."""

from __future__ import annotations

import msgspec

from millrace import Context, KeyedProcess, days, side_output, value_state
from millrace_apps.clickstream.contracts.messages import ConsentSaid, Marked, ToOffers, ToPerson
from millrace_apps.clickstream.processes.funnels import Funnel
from millrace_apps.clickstream.processes.person_funnels import KeptWays, PersonFunnel, gone_row, rows_of
from millrace_apps.clickstream.state.browser_state import arm_in
from millrace_apps.clickstream.state.consent import STITCH
from millrace_apps.clickstream.state.registers import Register
from millrace_apps.clickstream.state.suppression import Suppressed

#: Funnel and number of a way → its row as it stands; None: it is over for good.
Ways = dict[tuple[str, int], PersonFunnel | None]


class PersonWays(KeyedProcess[ToPerson, ToOffers]):
    """Keeps the ways of persons.

    Args:
        funnels: Funnels of persons.
        holdout: Share of the persons who are offered nothing by any rule, by which the arm of their rows is.
        lateness_ms: So long behind the watermark a browser may still tell of a step, ms.
    """

    ways = value_state(KeptWays, ttl=days(395))
    person_funnels = side_output(PersonFunnel)

    def __init__(self, funnels: tuple[Funnel, ...], holdout: float, lateness_ms: int) -> None:
        self._funnels, self._holdout = funnels, holdout
        # For so long what was told may go again with a withdrawal, and nobody's be somebody's.
        self._unsettled_ms = lateness_ms + max((f.within_ms for f in funnels), default=0)

    def _marked(self, event: Marked, said: Register, erased: Suppressed | None, ctx: Context) -> None:
        """Take down what somebody has done in a browser, and write the ways that are others by it."""
        if not self._funnels:
            return
        kept = self.ways.value or KeptWays()
        if erased is not None:
            kept.after_ms = max(kept.after_ms, erased.at_ms)
        before = self._ways_of(kept, said, ctx)
        kept.take(event.visitor, event.revision, event.since_ms, event.marks)
        kept.drop(kept.after_ms)  # a browser that has not heard of it yet still tells of what was before
        if event.forgotten:
            kept.forget_browser(event.visitor)
        self._write_ways(before, said, kept, ctx)
        kept.settle(self._funnels, ctx.watermark - self._unsettled_ms, _may_be_known(kept, said))
        # Of what was written the revision is needed: what comes late is dated before it.
        withdrawn = kept.after_ms > (KeptWays().after_ms if erased is None else erased.at_ms)
        if kept.empty and not kept.revision and not withdrawn:
            self.ways.clear()
        else:
            self.ways.value = kept

    def _standing(self, said: Register, ctx: Context) -> Ways:
        """Return the rows that stand."""
        kept = self.ways.value
        if not self._funnels or kept is None:
            return {}
        over: Ways = {(n, way): None for n, o in kept.over.items() for way in range(1, o.number + 1)}
        return over | self._ways_of(kept, said, ctx)

    def _ways_said(self, event: ConsentSaid, before: Ways, said: Register, ctx: Context) -> None:
        """Let an answer about profiles hold for ways, too."""
        if not self._funnels or not event.bits & STITCH:
            return
        kept = self.ways.value or KeptWays()
        if not event.granted:
            kept.forget_until(event.at_ms)
        before = _changing(before, kept)
        self._write_ways(before, said, kept, ctx)
        self.ways.value = kept  # up to when nothing may be known is kept, too

    def _no_ways(self, at_ms: int, said: Register, ctx: Context) -> None:
        """Let nothing be known of ways up to a moment, UTC ms."""
        kept = self.ways.value
        if self._funnels and kept is not None:
            before = self._standing(said, ctx)
            kept.forget_until(at_ms)
            self._write_ways(_changing(before, kept), said, kept, ctx)
            if kept.empty:
                self.ways.clear()
            else:
                self.ways.value = kept

    def _ways_of(self, kept: KeptWays, said: Register, ctx: Context) -> Ways:
        person, marks = str(ctx.key), _may_be_known(kept, said)
        arm = arm_in(person, self._holdout)
        return {
            (funnel.name, number): row
            for funnel in self._funnels
            for number, row in rows_of(funnel, kept, marks, person, arm).items()
        }

    def _write_ways(self, before: Ways, said: Register, kept: KeptWays, ctx: Context) -> None:
        after = self._ways_of(kept, said, ctx)
        for name in sorted({*before, *after}):
            row = after.get(name)
            if name in before and row is not None and row == before[name]:
                continue
            # What was kept may have been forgotten: the number is beyond that of any row before.
            kept.revision = max(kept.revision + 1, ctx.event_time)
            told = row or gone_row(name[0], str(ctx.key), name[1])
            told = msgspec.structs.replace(told, revision=kept.revision)
            ctx.output(self.person_funnels, told, revision=kept.revision)


def _changing(rows: Ways, kept: KeptWays) -> Ways:
    """Return the rows that stand but those of ways that are still over for good."""
    return {name: row for name, row in rows.items() if row is not None or name[0] not in kept.over}


def _may_be_known(kept: KeptWays, said: Register) -> dict[str, list[int]]:
    """Return the marks of all browsers but those that the person refuses to be known by."""
    marks = kept.marks()
    if not said.said:
        return marks
    return {step: [t for t in times if not said.no_profile(t)] for step, times in marks.items()}
