"""Consent per purpose: asked at the first visit of a browser, changed now and then."""

from __future__ import annotations

from typing import Final

from millrace_apps.clickstream.contracts.events import PURPOSES, Consent, Purpose
from millrace_apps.generators.clickstream.profile import DOMAIN_NAME, ClickstreamProfile, Names
from millrace_apps.generators.clickstream.trail import Trail
from millrace_apps.generators.clickstream.visitors import pick
from millrace_apps.generators.engine.randomness import substream
from millrace_apps.generators.engine.simulated import Truth

#: Answers to the banner and their cumulated shares; who does not answer is asked again next time.
_ANSWERS: Final[tuple[tuple[tuple[Purpose, ...] | None, float], ...]] = (
    (PURPOSES, 0.45),
    (("analytics",), 0.55),
    ((), 0.70),
    (None, 1.0),
)
#: Shares of visits at whose end consent is withdrawn (all of it in one of three cases), or given after all.
_WITHDRAWAL_SHARE: Final = 0.004
_SECOND_THOUGHT_SHARE: Final = 0.003


class Consents:
    """Plans what visitors agree to, from random numbers of its own.

    Args:
        profile: Its seed.
        names: Makes identifiers.
    """

    def __init__(self, profile: ClickstreamProfile, names: Names) -> None:
        self._names = names
        self._draw_answer = substream(profile.seed, DOMAIN_NAME, "consent").random
        self._draw_change = substream(profile.seed, DOMAIN_NAME, "consent_change").random

    def ask(self, trail: Trail) -> None:
        """Show the banner on the landing page unless it has been answered before."""
        chance, hurry = self._draw_answer(), self._draw_answer()
        device = trail.device
        if device.consents is not None:
            return
        answer = pick(_ANSWERS, chance)
        if answer is None:
            return
        trail.wait(1_000 + int(hurry * 9_000))
        device.consents = answer
        if answer:
            self._decide(trail, answer, granted=True)
        if len(answer) < len(PURPOSES):
            refused = tuple(purpose for purpose in PURPOSES if purpose not in answer)
            self._decide(trail, refused, granted=False)

    def reconsider(self, trail: Trail) -> None:
        """Withdraw consent, or give it after all, at the end of a few visits."""
        chance, what = self._draw_change(), self._draw_change()
        given = trail.device.consents
        if given and chance < _WITHDRAWAL_SHARE:
            some: tuple[Purpose, ...] = ("marketing",) if "marketing" in given else given
            withdrawn = given if what < 1 / 3 else some
            trail.device.consents = tuple(purpose for purpose in given if purpose not in withdrawn)
            trail.wait(5_000)
            self._decide(trail, withdrawn, granted=False, withdrawal=True)
        elif given == () and chance < _SECOND_THOUGHT_SHARE:
            trail.device.consents = PURPOSES
            trail.wait(5_000)
            self._decide(trail, PURPOSES, granted=True)

    def _decide(
        self, trail: Trail, purposes: tuple[Purpose, ...], *, granted: bool, withdrawal: bool = False
    ) -> None:
        consent_id = f"{self._names.of('consent', trail.number)}-{trail.length:x}"
        event = Consent(consent_id, trail.visitor_id, trail.device.user_id, purposes, granted, trail.at_ms)
        place = trail.other("consents", trail.visitor_id, event)
        if withdrawal:
            truth = Truth(
                truth_id=f"truth-{consent_id}",
                kind="consent_withdrawn",
                entity=trail.visitor_id,
                expected="no_effect_after",
                detail={"purposes": list(purposes)},
            )
            trail.mark(place, truth)
