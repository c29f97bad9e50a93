"""Answers to the question for consent, against a reading of the whole history."""

from __future__ import annotations

import random

from apps.clickstream.consent import BITS, Answer, Answers, Step, names
from tests.unit.apps.clickstream.test_visitor import START, click, consent, driver, send

CASES = 10_000


def drawn(draws: random.Random) -> list[Answer]:
    """Answers with different names, some of one moment."""
    return [
        Answer(draws.randrange(1, 40), f"a{number}", draws.randrange(8), draws.random() < 0.5)
        for number in range(draws.randrange(1, 9))
    ]


def allowed_by(answers: list[Answer]) -> list[str]:
    """What is allowed by an own reading: of each purpose the newest answer that names it."""
    found = []
    for name, bit in BITS.items():
        naming = [a for a in answers if a.bits & bit]
        newest = max((a.at_ms for a in naming), default=None)
        if naming and all(a.granted for a in naming if a.at_ms == newest):
            found.append(name)
    return found


def _place(answer: Answer) -> tuple[int, int, str]:
    """Of one moment withdrawals are last."""
    return answer.at_ms, 0 if answer.granted else 1, answer.consent_id


def test_what_was_said_last_holds_in_whichever_order_answers_come() -> None:
    draws = random.Random(5)
    for _ in range(CASES):
        said = drawn(draws)
        draws.shuffle(said)
        kept, horizon = Answers(), 0
        for number, answer in enumerate(said, 1):
            horizon = max(horizon, draws.choice((0, horizon, draws.randrange(45))))
            steps = kept.take(answer, horizon)
            assert steps[0].answer is answer or answer in [step.answer for step in steps]
            assert names(kept.in_force) == allowed_by(said[:number])


def test_rows_hang_on_the_answers_alone() -> None:
    draws = random.Random(6)
    for _ in range(CASES):
        said = drawn(draws)
        expected = {a.consent_id: allowed_by([b for b in said if _place(b) <= _place(a)]) for a in said}
        draws.shuffle(said)
        kept, rows = Answers(), dict[str, Step]()
        for answer in said:
            rows |= {step.answer.consent_id: step for step in kept.take(answer, 0)}
        assert {name: names(step.after) for name, step in rows.items()} == expected
        ordered = [rows[a.consent_id] for a in sorted(said, key=_place)]
        assert [step.before for step in ordered] == [0, *(step.after for step in ordered[:-1])]


def test_an_older_grant_that_comes_later_gives_nothing_back() -> None:
    target = driver()
    send(target, consent(0), click(1, "login", user_id="u1"))
    send(target, consent(10, ("personalisation", "marketing"), granted=False))
    send(target, consent(5))
    send(target, click(11, item_id="i1", user_id="u1"))
    rows = {row.at_ms - START: row for row in target.values("consents")}
    assert [rows[at].in_force for at in (0, 5, 10)] == [[*BITS], [*BITS], ["analytics"]]
    assert [a for a in target.values() if getattr(a, "subject", None) == "i1"] == []


def test_a_row_that_an_older_answer_changes_is_written_again() -> None:
    target = driver()
    send(target, consent(10, ("marketing",)))
    send(target, consent(5, ("personalisation",)))
    found = [(row.at_ms - START, row.in_force) for row in target.values("consents")]
    assert found == [
        (10, ["marketing"]),
        (5, ["personalisation"]),
        (10, ["personalisation", "marketing"]),
    ]
    revisions = [row.revision for row in target.values("consents")]
    assert revisions == sorted(set(revisions))


def test_a_withdrawal_with_the_id_of_a_click_counts() -> None:
    target = driver()
    send(target, consent(0))
    send(target, click(1, id="consent-v1-3"))
    send(target, consent(3, ("marketing",), granted=False))
    assert [row.withdrawn for row in target.values("consents")] == [False, True]
