"""The parameters of the world of payments, and the words for its frauds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from millrace_apps.generators.engine.profile import Profile, check

#: Kind of fraud → what it is.
SCENARIOS: Final = {
    "high_amount": "one purchase above every genuine amount (the Handbook's scenario 1)",
    "compromised_terminal": "all purchases at one terminal for 28 days (the Handbook's scenario 2)",
    "compromised_card": "a third of a card's purchases for 14 days, five times as high (the Handbook's 3)",
    "card_testing": "many tiny online purchases with one card within a minute",
    "account_takeover": "high online purchases from a device and to an address never seen on the card",
    "impossible_travel": "purchases too far from the card's last one to have been travelled to",
    "device_ring": "cards of several holders used from one device, to one address, in turn",
    "merchant_compromise": "cards seen at one merchant misused elsewhere, days later",
    "small_then_large": "a purchase below 1.00, soon followed by one above 500.00",
    "spree": "six and more high purchases at the card's usual terminals within half a minute",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FraudProfile(Profile):
    """What the streams of transactions, labels and authorisations are made from.

    ``events`` counts the events of all streams together.

    Attributes:
        cards: Number of cards.
        terminals: Number of terminals, checkouts of web shops among them.
        card_skew: Zipf exponent of the cards' activity; 0: all within a factor of nine.
        rhythm: How much quieter nights are than days, 0 (not at all) to 0.95; a day has as many transactions
            all the same.
        online: Share of purchases made online, 0 to 1.
        fraud_rate: Frauds begun per 1,000 transactions, all kinds together.
        scenarios: Kinds of fraud that occur: names with commas between them, or all. A kind that is
            left out changes nothing about the others.
        fraud_scale: Factor on the durations of frauds; below 1 for short runs.
        label_scale: Factor on the delays of labels and of what is paid; below 1 for short runs, 0: there are
            no labels.
        authorised: Share of purchases of which authorisations tell what became of them, 0 to 1.
        transactions: So many transactions, then only their labels until the last is known; without it, no
            end.
    """

    cards: int = 10_000
    terminals: int = 2_000
    card_skew: float = 0.0
    rhythm: float = 0.0
    online: float = 0.3
    fraud_rate: float = 0.5
    scenarios: str = "all"
    fraud_scale: float = 1.0
    label_scale: float = 1.0
    authorised: float = 0.0
    transactions: int | None = None

    def __post_init__(self) -> None:
        # The two-argument form: a slotted dataclass is a second class, which super() alone does not find.
        super(FraudProfile, self).__post_init__()
        check(1 <= self.cards <= 10_000_000, "cards is a count between 1 and 10,000,000", self.cards)
        check(10 <= self.terminals <= 1_000_000, "terminals is a count from 10 to 1,000,000", self.terminals)
        check(0 <= self.card_skew <= 5, "card skew is an exponent between 0 and 5", self.card_skew)
        check(0 <= self.rhythm <= 0.95, "rhythm is 0 to 0.95", self.rhythm)
        check(0 <= self.online <= 1, "online is a share between 0 and 1", self.online)
        rate = self.fraud_rate
        check(0 <= rate <= 100, "fraud rate is 0 to 100 frauds per 1,000 transactions", rate)
        check(0 < self.fraud_scale <= 10, "fraud scale is above 0 and at most 10", self.fraud_scale)
        check(0 <= self.label_scale <= 10, "label scale is 0 (no labels) to 10", self.label_scale)
        check(0 <= self.authorised <= 1, "authorised is a share between 0 and 1", self.authorised)
        count = self.transactions
        check(count is None or count >= 0, "transactions is a count", count)
        for name in self.kinds:
            check(name in SCENARIOS, f"scenarios are all or some of {', '.join(SCENARIOS)}", name)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of fraud that occur."""
        if self.scenarios == "all":
            return tuple(SCENARIOS)
        return tuple(name.strip() for name in self.scenarios.split(",") if name.strip())
