"""Consent on random histories: the whole app in memory against a reading of all answers at once.

A history has persons with several browsers, logins, answers in any order and however late, repeats, any cut
into batches, and restarts. What the app sends itself comes back with the next batch, as over its topics.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from millrace.host.memory_chain import MemoryChain
from millrace.topology import Link, Topology
from millrace_apps.clickstream.contracts.events import PURPOSES, Click, Consent, Forget
from millrace_apps.clickstream.processes.bots import BY_NAME_ALONE
from millrace_apps.clickstream.processes.offer_rules import Condition, OfferRule, OfferStep
from millrace_apps.clickstream.processes.visitor import visitors
from millrace_apps.clickstream.state.browser_state import VisitorRules
from millrace_apps.clickstream.topology import entities, followed, results

_MINUTE: Final = 60_000
_START: Final = 1_767_225_600_000
#: Every view leads to an offer: whatever is forbidden would be seen.
_EACH_VIEW: Final = OfferRule(
    name="each", offer="x", within="1h", cap=10_000, cap_within="1h", cool_down="0s", control=0.0,
    steps=(OfferStep(name="view", where=(Condition(field="kind", is_="view"),)),),
)  # fmt: skip


@dataclass
class History:
    """A drawn history.

    Attributes:
        events: Clicks and answers in the order in which they come, some of them twice.
        cuts: How many of them are in each batch.
        restarts: Batches before which the app is started anew.
    """

    events: list[Click | Consent]
    cuts: list[int]
    restarts: set[int]

    def answers(self) -> list[Consent]:
        """Return the answers."""
        return [event for event in self.events if isinstance(event, Consent)]


@dataclass
class Outcome:
    """What the app did with a history.

    Attributes:
        consents: The rows of the audit that hold.
        profiles: The persons who have a profile in the end.
        identities: Browser → account, in the end.
        offers: Offers, each with the number of answers and clicks that had come by then.
    """

    consents: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    profiles: set[str] = field(default_factory=set)
    identities: dict[str, str] = field(default_factory=dict)
    offers: list[tuple[dict[str, Any], int]] = field(default_factory=list)


def drawn(seed: int) -> History:
    """Draw a history.

    Args:
        seed: Of two different ones the histories differ.
    """
    draw = random.Random(seed)  # noqa: S311 - a drawing of cases, no secret
    owners = {f"b{n}": f"u{n % 2}" for n in range(draw.choice((2, 3, 4)))}
    events: list[Click | Consent] = []
    for number in range(draw.randrange(8, 28)):
        browser = draw.choice(sorted(owners))
        at = _START + draw.randrange(30) * _MINUTE
        user = owners[browser] if draw.random() < 0.7 else None
        if draw.random() < 0.5:
            purposes = tuple(p for p in PURPOSES if draw.random() < 0.7) or (draw.choice(PURPOSES),)
            granted = draw.random() < 0.6
            events.append(Consent(f"a{number}", browser, user, purposes, granted, at))
        else:
            events.append(_view(f"c{number}", browser, at, user))
    events += [draw.choice(events) for _ in range(draw.randrange(3))]
    if draw.random() < 0.3:
        events.sort(key=lambda e: e.event_time_ms)
    else:
        draw.shuffle(events)
    cuts, left = [], len(events)
    while left:
        cuts.append(draw.randint(1, min(left, draw.choice((1, 3, 30)))))
        left -= cuts[-1]
    return History(events, cuts, {n for n in range(len(cuts)) if draw.random() < 0.1})


def _view(identity: str, browser: str, at: int, user: str | None) -> Click:
    return Click(
        event_id=identity,
        event_type="page_view",
        event_time_ms=at,
        client_time_ms=at,
        visitor_id=browser,
        client_session_id="s",
        client_session_number=1,
        device="mobile",
        user_agent="Mozilla/5.0",
        page_type="item",
        page_url="/x",
        user_id=user,
        item_id=identity,
        category="c",
        price=1.0,
    )


def run(history: History) -> Outcome:
    """Let the whole app in memory read a history; what it sends itself comes back with the next batch."""
    rules = VisitorRules(rate_events=1_000, bots=BY_NAME_ALONE, holdout=0.0)
    visited = Topology({}, (Link(visitors(rules)),))
    chain = MemoryChain(
        followed(visited, entities(), results((_EACH_VIEW,), 0.0)), out_of_orderness_ms=60 * _MINUTE
    )
    found, back, place = Outcome(), list[Any](), 0
    for number, size in enumerate(history.cuts):
        if number in history.restarts:
            chain.restart()
        batch = [*back, *map(_read, history.events[place : place + size])]
        place += size
        back = _taken(chain.run_batch(batch), found, place)
    while back:
        back = _taken(chain.run_batch(back), found, place)
    _taken(chain.advance_watermark(_START + 40 * _MINUTE), found, place)
    return found


def _read(event: Click | Consent) -> tuple[str, int, Any]:
    return event.visitor_id, event.event_time_ms, event


def _taken(emissions: Iterable[Any], found: Outcome, place: int) -> list[Any]:
    """Take down what was told; return what comes back over the app's topics."""
    back: list[Any] = []
    for emission in emissions:
        output = emission.output
        if output == "Entities.consents":
            back.append(_read(msgspec.json.decode(emission.payload, type=Consent)))
        elif output == "Entities.forget":
            asked = msgspec.json.decode(emission.payload, type=Forget)
            back.append((asked.subject, asked.event_time_ms, asked))
        elif output in ("Visitors.consents", "Visitors.identities", "Entities.profiles", "offers"):
            _row(output, msgspec.json.decode(emission.payload), found, place)
    return back


def _row(output: str, row: dict[str, Any], found: Outcome, place: int) -> None:
    if output == "offers":
        found.offers.append((row, place))
    elif output == "Visitors.consents":
        found.consents[row["visitor_id"], row["consent_id"]] = row
    elif output == "Visitors.identities":
        found.identities.pop(row["visitor_id"], None)
        if not row["deleted"]:
            found.identities[row["visitor_id"]] = row["user_id"]
    elif row["deleted"]:
        found.profiles.discard(row["person"])
    else:
        found.profiles.add(row["person"])


def allowed(answers: Sequence[Consent], purpose: str, at_ms: int | None = None) -> bool | None:
    """Return what some answers say about a purpose, now or at a moment; ``None``: nothing.

    Args:
        answers: All of them, in any order.
        purpose: The purpose.
        at_ms: The moment, UTC ms.
    """
    naming = [a for a in answers if purpose in a.purposes and (at_ms is None or a.event_time_ms <= at_ms)]
    if not naming:
        return None
    last = max(answer.event_time_ms for answer in naming)
    return all(answer.granted for answer in naming if answer.event_time_ms == last)


def wrong(history: History, outcome: Outcome) -> list[str]:
    """Return what of an outcome no reading of the history allows, a line each."""
    answers, said = history.answers(), []
    by_person = {u: [a for a in answers if a.user_id == u] for u in ("u0", "u1")}
    for person, own in by_person.items():
        if allowed(own, "personalisation") is False and f"u:{person}" in outcome.profiles:
            said.append(f"{person} has a profile after its withdrawal")
    for browser in sorted({event.visitor_id for event in history.events}):
        own = [a for a in answers if a.visitor_id == browser]
        user = outcome.identities.get(browser)
        if user is not None:
            own += by_person[user]
        elif any(row["told"] for (there, _), row in outcome.consents.items() if there == browser):
            continue  # known once, and told then what held for its person
        expected = [p for p in PURPOSES if allowed(own, p)]
        if (rows := _newest(outcome, browser)) is not None and rows != expected:
            said.append(f"in {browser} {rows} is in force, and not {expected}")
        if user is not None and "personalisation" not in expected:
            said.append(f"{browser} is known as {user}'s, which nobody has allowed")
    for offer, place in outcome.offers:
        come = [event for event in history.events[:place] if isinstance(event, Consent)]
        said += _forbidden(offer, come)
    return said


def _forbidden(offer: dict[str, Any], come: Sequence[Consent]) -> Iterable[str]:
    """Yield why an offer must not be, by the answers that had come; its person's may count in a browser."""
    browser, at = offer["visitor_id"], offer["at_ms"]
    mine = [a for a in come if f"u:{a.user_id}" == offer["person"]]
    there = [a for a in come if a.visitor_id == browser]
    owner = {a.user_id for a in there if a.user_id}
    told = [*there, *(a for a in come if a.user_id in owner)]
    for purpose in ("personalisation", "marketing"):
        if allowed(mine, purpose, at) is False:
            yield f"{offer['person']} is offered something after its withdrawal of {purpose}"
        if not (
            allowed(there, purpose, at) or allowed(told, purpose, at) or allowed([*there, *mine], purpose, at)
        ):
            yield f"in {browser} something is offered to {offer['person']} without consent to {purpose}"


def _newest(outcome: Outcome, browser: str) -> list[str] | None:
    rows = [row for (there, _), row in outcome.consents.items() if there == browser]
    last = max(rows, key=lambda r: (r["at_ms"], not r["granted"], r["consent_id"]), default=None)
    return None if last is None else list(last["in_force"])


def evaluate_consent(cases: int, seed: int) -> dict[str, Any]:
    """Run random histories; return the report.

    Args:
        cases: How many.
        seed: Number of the first one.
    """
    failed: list[dict[str, Any]] = []
    counts = dict.fromkeys(("answers", "offers", "profiles", "told"), 0)
    for number in range(seed, seed + cases):
        history = drawn(number)
        outcome = run(history)
        counts["answers"] += len(history.answers())
        counts["offers"] += len(outcome.offers)
        counts["profiles"] += len(outcome.profiles)
        counts["told"] += sum(bool(row["told"]) for row in outcome.consents.values())
        if found := wrong(history, outcome):
            failed.append({"case": number, "wrong": found})
    return {"cases": cases, "failed": len(failed), **counts, "failures": failed[:20]}
