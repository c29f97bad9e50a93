"""The audit of the tables: the invariants as questions to everything that was written, in one pass each.

It is written another way than the streaming auditor: intervals and sorts over whole tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pandas as pd

from millrace_apps.ridesharing.processes.matching import Rules
from millrace_apps.ridesharing.state.lifecycle import TERMINAL, may_follow

#: The invariants and what they say.
INVARIANTS: Final = {
    1: "a driver has at most one open commitment, a request at most one open offer",
    2: "offers go to available drivers: position fresh, class fitting, inside the radius",
    3: "every step is in the table of states, each request ends once, and time does not run backwards",
    4: "every offer is answered, expires or is withdrawn in time, and each attempt ends once",
    6: "requests = completed + cancelled + no-show + no driver + lost + open; drivers on line add up",
    7: "a request does not wait longer than the patience it is given",
    8: "one row per request and attempt, attempts count up by one",
    9: "a driver's commitments of all regions do not overlap",
    11: "a rider has at most one open request, beside what is booked for later",
}
_EXAMPLES: Final = 5


@dataclass
class Findings:
    """What the audit found.

    Attributes:
        by_invariant: Invariant → number of violations.
        examples: Some of them as text.
        checked: How many rows were looked at, by table.
    """

    by_invariant: dict[int, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of violations."""
        return sum(self.by_invariant.values())

    def add(self, invariant: int, wrong: pd.DataFrame, what: str) -> None:
        """Take note of the rows that violate an invariant."""
        self.by_invariant[invariant] = self.by_invariant.get(invariant, 0) + len(wrong)
        for row in wrong.head(_EXAMPLES).to_dict("records"):
            self.examples.append(f"{invariant}: {what}: {_brief(row)}")


def _brief(row: Mapping[Any, Any]) -> str:
    names = ("request_id", "driver_id", "attempt", "region", "state", "before", "offered_ms", "at_ms")
    return ", ".join(f"{n} {row[n]}" for n in names if n in row)


def audit(tables: Mapping[str, pd.DataFrame], *, patience_ms: int, rules: Rules | None = None) -> Findings:
    """Check the tables against the invariants.

    Args:
        tables: ``assignments`` and ``trips`` (all revisions of a row, or the last), ``offers``, ``windows``.
        patience_ms: How long a driver is searched for, ms.
        rules: Which classes serve which others; ``None``: each serves its own alone.
    """
    found = Findings(checked={name: len(frame) for name, frame in tables.items()})
    found.by_invariant = dict.fromkeys(INVARIANTS, 0)
    attempts = _newest(tables["assignments"], ["request_id", "attempt"], found)
    if len(attempts):
        _commitments(attempts, found)
        _eligible(attempts, rules or Rules(), found)
        _numbers(attempts, found)
    if len(tables["trips"]):
        _states(tables["trips"], found)
        _conservation(tables["trips"], attempts, found)
        _riders(tables["trips"], found)
        _patience(tables["trips"], patience_ms, found)
    if len(tables["offers"]):
        _offers(tables["offers"], attempts, found)
    if len(tables["windows"]):
        w = tables["windows"]
        counted = w["drivers_offered"] + w["drivers_busy"] + w["drivers_free"]
        found.add(6, w[counted > w["drivers_online"] + w["drivers_busy"]], "more drivers than there are")
        found.add(2, w[w["matched"] > np.minimum(w["riders"], w["drivers_free"])], "more pairs than sides")
    return found


def _newest(rows: pd.DataFrame, key: list[str], found: Findings) -> pd.DataFrame:
    if not len(rows):
        return rows
    repeated = rows[rows.duplicated([*key, "revision"], keep=False)]
    found.add(8, repeated, "the same revision twice")
    return rows.sort_values([*key, "revision"], kind="stable").groupby(key, sort=False).tail(1)


def _commitments(attempts: pd.DataFrame, found: Findings) -> None:
    """Find commitments of one driver, or of one request, that overlap: each ends before the next begins."""
    ends = attempts["closed_ms"].where(attempts["closed_ms"] > 0, np.iinfo(np.int64).max)
    frame = attempts.assign(ends=ends)
    found.add(3, frame[frame["ends"] < frame["offered_ms"]], "a commitment ends before it begins")
    for who, invariant in (("driver_id", 9), ("request_id", 1)):
        ordered = frame.sort_values([who, "offered_ms", "ends"], kind="stable")
        latest = ordered.groupby(who)["ends"].cummax().shift()
        same = ordered[who] == ordered[who].shift()
        wrong = ordered[same & (ordered["offered_ms"] < latest)]
        found.add(
            invariant if who == "request_id" else _one_region(wrong), wrong, f"two open at once of one {who}"
        )


def _one_region(wrong: pd.DataFrame) -> int:
    return 9 if len(wrong) and wrong["region"].nunique() > 1 else 1


def _eligible(attempts: pd.DataFrame, rules: Rules, found: Findings) -> None:
    made = attempts[attempts["policy"] != "manual"]
    found.add(2, made[made["location_age_ms"] > made["ttl_ms"]], "the position was too old")
    found.add(2, made[made["distance_m"] > made["radius_m"] + 0.1], "beyond the radius")
    serving = {(one.vehicle_class, one.wanted) for one in rules.serves}
    classes = zip(made["vehicle_class"], made["wanted_class"], strict=True)
    other = [car not in ("", wanted) and (car, wanted) not in serving for car, wanted in classes]
    found.add(2, made[other], "a class that does not serve the one asked for")


def _numbers(attempts: pd.DataFrame, found: Findings) -> None:
    ordered = attempts.sort_values(["request_id", "attempt"])
    rank = ordered.groupby("request_id").cumcount() + 1
    found.add(8, ordered[ordered["attempt"] != rank], "attempts do not count up by one")


def _states(trips: pd.DataFrame, found: Findings) -> None:
    ordered = trips.sort_values(["request_id", "revision"], kind="stable")
    forbidden = [not may_follow(b, s) for b, s in zip(ordered["before"], ordered["state"], strict=True)]
    found.add(3, ordered[forbidden], "not in the table of states")
    before = ordered.groupby("request_id")["state"].shift().fillna("")
    found.add(3, ordered[before != ordered["before"]], "does not follow the state before")
    back = ordered["at_ms"] < ordered.groupby("request_id")["at_ms"].shift().fillna(0)
    found.add(3, ordered[back], "time runs backwards")
    rank = ordered.groupby("request_id").cumcount()
    found.add(3, ordered[ordered["revision"] != rank], "a revision is missing or twice")
    ends = ordered[ordered["state"].isin(TERMINAL)]
    found.add(3, ends[ends.duplicated("request_id")], "ended twice")


def _conservation(trips: pd.DataFrame, attempts: pd.DataFrame, found: Findings) -> None:
    last = trips.sort_values("revision").groupby("request_id").tail(1)
    if not len(attempts):
        return
    done = attempts[attempts["state"] == "completed"]
    found.add(6, done[done.duplicated("request_id")], "completed twice")
    ends = last.set_index("request_id")["state"]
    of = attempts["request_id"].map(ends)
    found.add(6, attempts[of.isna()], "an attempt of no request")
    found.add(6, attempts[(attempts["state"] == "completed") & (of != "completed")], "completed by half")
    open_attempt = attempts["closed_ms"] == 0
    found.add(4, attempts[open_attempt & of.isin(TERMINAL)], "open after the request has ended")
    completed = set(done["request_id"])
    alone = last[(last["state"] == "completed") & ~last["request_id"].isin(completed)]
    found.add(6, alone, "completed with no driver")


def _riders(trips: pd.DataFrame, found: Findings) -> None:
    """Find requests of one rider that are open at once, in whatever regions."""
    asked = trips[~trips["state"].isin(["booked", "refused"])]
    key = ["rider_id", "request_id"]
    begins = asked[~asked["state"].isin(TERMINAL)].groupby(key)["at_ms"].min().rename("begins")
    ends = asked[asked["state"].isin(TERMINAL)].groupby(key)["at_ms"].min().rename("ends")
    spans = begins.to_frame().join(ends).fillna({"ends": np.inf}).reset_index()
    spans = spans.sort_values(["rider_id", "begins", "ends"], kind="stable")
    before = spans.groupby("rider_id")["ends"].cummax().shift()
    same = spans["rider_id"] == spans["rider_id"].shift()
    found.add(11, spans[same & (spans["begins"] < before)], "two requests of a rider at once")


def _patience(trips: pd.DataFrame, patience_ms: int, found: Findings) -> None:
    ordered = trips.sort_values(["request_id", "revision"], kind="stable")
    following = ordered.groupby("request_id")["at_ms"].shift(-1)
    waits = ordered[ordered["state"] == "processing"]
    # What is searched for still is as old as the table's newest row says; other tables may be further.
    stayed = following[waits.index].fillna(trips["at_ms"].max()) - waits["at_ms"]
    found.add(7, waits[stayed > patience_ms], "searched for too long")


def _offers(offers: pd.DataFrame, attempts: pd.DataFrame, found: Findings) -> None:
    found.add(8, offers[offers.duplicated("offer_id")], "an offer twice")
    joined = offers.merge(attempts, on=["request_id", "attempt"], how="left", suffixes=("", "_of"))
    found.add(8, joined[joined["state"].isna()], "an offer of no attempt")
    overdue = (joined["accepted_ms"] > joined["expires_ms"]) & ~joined["state"].isna()
    found.add(4, joined[overdue], "accepted after its end")
    unanswered = (joined["accepted_ms"] == 0) & (joined["closed_ms"] > joined["expires_ms"])
    found.add(4, joined[unanswered], "open after its end")
    now_ms = int(attempts[["offered_ms", "accepted_ms", "closed_ms"]].max().max()) if len(attempts) else 0
    standing = (joined["accepted_ms"] == 0) & (joined["closed_ms"] == 0) & (joined["expires_ms"] < now_ms)
    found.add(4, joined[standing], "open still")
