"""The rule language of fraud, and the windows that each stage computes for the rules in force."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from millrace.parts.lookback import Look
from millrace.rules import (
    Constant,
    Entry,
    Field,
    FieldName,
    Function,
    InForce,
    Language,
    Rule,
    Use,
    Where,
    Window,
    Word,
    listed,
    view_of,
)
from millrace_apps.fraud.contracts.events import Transaction
from millrace_apps.fraud.contracts.feature_types import CardFeatures, EntityFeatures
from millrace_apps.fraud.processes.billing import billed
from millrace_apps.fraud.processes.features import Features
from millrace_apps.fraud.processes.label_fields import (
    NOTHING_SAID,
    TERMINAL_LABELS,
    NothingSaid,
    label_fields,
)
from millrace_apps.fraud.processes.local_time import hour_of, weekday_of
from millrace_apps.fraud.processes.window_functions import ENTITIES, PAIRS, Asked, asked, chosen_of, entity_of
from millrace_apps.fraud.state.history import HORIZON_MS
from millrace_apps.fraud.state.kinds import PURCHASE_FIELDS, TOLD_APART
from millrace_apps.fraud.state.labels import LabelRisk, TerminalLabels

_SMALLEST_BEFORE: Final = "smallest_before"


class Windows(dict[str, "float | None"]):
    """Values of window functions by their text; ``None`` where none can be had.

    Args:
        known: Those of earlier stages.
        asked: Those that are computed here, when a rule asks.
        look: The history they are computed from.
        tx: The transaction.
        cents: Its amount if it is a purchase, else 0.
    """

    __slots__ = ("_asked", "_cents", "_look", "_tx")

    def __init__(
        self,
        known: Mapping[str, float | None],
        asked: Asked | None = None,
        look: Look | None = None,
        tx: Transaction | None = None,
        cents: int = 0,
    ) -> None:
        super().__init__(known)
        self._asked = {} if asked is None or look is None or tx is None else asked
        self._look, self._tx, self._cents = look, tx, cents

    def __missing__(self, text: str) -> float | None:
        function = self._asked.get(text)
        if function is None:
            return None
        value = function(self._look, self._tx, self._cents)  # type: ignore[arg-type] # there where one is asked
        if value is not None:
            value = float(value)
        self[text] = value
        return value


#: Of a transaction of which no rule asks for a window.
NO_WINDOWS: Final = Windows({})


class Facts:
    """What a rule is asked about: everything that is known at a transaction.

    Attributes:
        tx: The transaction.
        billed: Its amount in the app's currency; None: it is not known.
        own: The card's totals and last 24 hours.
        card: The card's last 30 days.
        account: The account; None where there is none, or its stage is left out. So for the others.
        terminal: The terminal.
        device: The device.
        address: The IP address.
        windows: What window functions gave, by their text.
        lists: List → value → event time until which it is on it, ms.
        event_time_ms: Event time, ms.
        score: Score of the built-in reasons.
        model_score: The model's; None without a model.
        card_labels: What labels had said of the card's transactions.
        terminal_labels: The same of the terminal's.
    """

    __slots__ = (
        "account", "address", "billed", "card", "card_labels", "device", "event_time_ms", "lists",
        "model_score", "own", "score", "terminal", "terminal_labels", "tx", "windows",
    )  # fmt: skip

    def __init__(
        self,
        tx: Transaction,
        own: Features,
        card: CardFeatures,
        entities: tuple[EntityFeatures | None, ...],
        windows: Windows,
        lists: Mapping[str, Mapping[str, int]],
        score: float,
        model_score: float | None,
        card_labels: LabelRisk | None = None,
        terminal_labels: TerminalLabels | None = None,
    ) -> None:
        self.tx, self.own, self.card, self.windows, self.lists = tx, own, card, windows, lists
        self.billed = billed(tx)
        self.account, self.terminal, self.device, self.address = entities
        self.event_time_ms, self.score, self.model_score = tx.event_time_ms, score, model_score
        self.card_labels: LabelRisk | NothingSaid = NOTHING_SAID if card_labels is None else card_labels
        self.terminal_labels: LabelRisk | NothingSaid = (
            NOTHING_SAID if terminal_labels is None else terminal_labels
        )

    @property
    def hour(self) -> int:
        """The local hour."""
        return hour_of(self.tx)

    @property
    def weekday(self) -> int:
        """The local weekday."""
        return weekday_of(self.tx)

    @property
    def home_country(self) -> str | None:
        """The country of the card's holder: what the transaction says, else what its purchases do."""
        return self.tx.home_country or self.card.home_country


def text_of(use: Use) -> str:
    """Return a window function's text, by which its value is known.

    >>> text_of(Use("sum", ("amount", "card", 600_000)))
    'sum(amount, card, 600000)'
    """
    name = _SMALLEST_BEFORE if use.name == "small_then_large" else use.name
    arguments = use.arguments[2:] if use.name == "small_then_large" else use.arguments
    return f"{name}({', '.join(map(str, arguments))})"


@lru_cache(maxsize=1_024)
def windows_of(uses: frozenset[Use]) -> tuple[str, ...]:
    """Return the texts of the window functions that a condition uses, in order."""
    return tuple(sorted(text_of(use) for use in uses if entity_of(use)))


def _bind(name: str) -> Callable[..., Callable[[Any], Any]]:
    def bind(*arguments: Any) -> Callable[[Facts], float | None]:
        use = Use(name, arguments)
        if chosen_of(use) is not None and "card" not in arguments:
            raise ValueError("a condition can choose among the purchases of a card only")
        text = text_of(use)
        return lambda facts: facts.windows[text]

    return bind


def _small_then_large(small: float, large: float, window_ms: int) -> Callable[[Facts], bool]:
    text = text_of(Use("small_then_large", (small, large, window_ms)))

    def holds(facts: Facts) -> bool:
        amount = billed(facts.tx)
        if amount is None or amount < large or facts.tx.kind != "purchase":
            return False
        least = facts.windows[text]
        return least is not None and least <= small

    return holds


_ANY: Final = Word(("card", *ENTITIES, *PAIRS))
_WHOLE: Final = Word(("card", *ENTITIES))
_AMOUNT: Final = FieldName("number", ("amount",))
_WINDOW: Final = Window(1_000, HORIZON_MS)
_DISTINCT: Final = Word(("card", "terminal", "device", "ip", *TOLD_APART))
_CHOSEN: Final = Where(PURCHASE_FIELDS)


_OWN: Final = (
    "purchases_before", "count_1m", "sum_1m", "count_1h", "sum_1h", "count_24h", "sum_24h",
    "small_count_1m", "large_count_5m", "balance", "excluded_1m", "excluded_1h", "excluded_24h",
)  # fmt: skip
_OWN_OR_MISSING: Final = (
    "mean_before", "std_before", "median_before", "per_hour_before", "zscore",
)  # fmt: skip
_CARD_MISSING: Final = frozenset(
    {"gap_s", "gap_median_s", "max_30d", "min_1m", "device_before", "ip_before", "km", "kmh"}
)
_TEXTS: Final = {"card": "card_id", "terminal": "terminal_id"}
_MAYBE_TEXTS: Final = {
    "customer": "customer_id",
    "account": "account_id",
    "merchant": "merchant_id",
    "channel": "channel",
    "device": "device_id",
    "ip": "ip",
    "address": "address_id",
}


_BILLED: Final = Field(
    "number", nullable=True, attribute="billed", about="in the app's currency; missing where it is not known"
)


def _fields() -> dict[str, Field]:
    own = {name: Field("number", attribute=f"own.{name}") for name in _OWN}
    own |= {name: Field("number", nullable=True, attribute=f"own.{name}") for name in _OWN_OR_MISSING}
    card = {
        name: Field("number", nullable=name in _CARD_MISSING, attribute=f"card.{name}")
        for name in CardFeatures.__struct_fields__
        if name not in ("fastest_kmh", "truncated", "home_country")
    }
    texts = {name: name for name in ("mcc", "country", "kind", "currency")} | _TEXTS
    maybe = _MAYBE_TEXTS
    return {
        **dict.fromkeys(("amount", "billing_amount"), _BILLED),
        "original_amount": Field("number", attribute="tx.amount", about="in units of `currency`"),
        **{name: Field("text", attribute=f"tx.{of}") for name, of in texts.items()},
        **{name: Field("text", nullable=True, attribute=f"tx.{of}") for name, of in maybe.items()},
        "home_country": Field(
            "text", nullable=True, about="of the holder; else of most of the card's purchases"
        ),
        "hour": Field("number", about="local, 0 to 23; of UTC without utc_offset_min"),
        "weekday": Field("number", about="local, 1 (Monday) to 7"),
        "score": Field("number", about="of the built-in reasons, 0 to 1"),
        "model_score": Field("number", nullable=True, about="the model's probability of fraud"),
        **own,
        **card,
        **label_fields(),
    }


FIELDS: Final = _fields()
_DIFFERENT: Final = "different cards of an entity; of a card all the others"
_TESTED: Final = "a purchase of at least the second after one of at most the first"


def _window(name: str, *parameters: Word | FieldName | Where, about: str) -> Function:
    chosen = parameters[-1:] if isinstance(parameters[-1], Where) else ()
    takes = (*parameters[: len(parameters) - len(chosen)], _WINDOW, *chosen)
    return Function(name, takes, "number", _bind(name), nullable=True, about=about)


LANGUAGE: Final = Language(
    FIELDS,
    (
        _window("count", _ANY, _CHOSEN, about="purchases, this one included"),
        _window("sum", _AMOUNT, _ANY, _CHOSEN, about="of purchases, this one included"),
        _window("mean", _AMOUNT, _WHOLE, _CHOSEN, about="of purchases, this one included"),
        _window("largest", _AMOUNT, _WHOLE, _CHOSEN, about="purchase"),
        _window("smallest", _AMOUNT, _WHOLE, _CHOSEN, about="purchase"),
        _window("declined", Word(("card",)), about="payments that were declined, by their authorisations"),
        _window("distinct", _DISTINCT, _WHOLE, about=_DIFFERENT),
        Function(
            "small_then_large",
            (Constant("number"), Constant("number"), _WINDOW),
            "boolean",
            _small_then_large,
            about=_TESTED,
            implies=lambda small, large, window_ms: ("amount", large),
        ),
        listed(FIELDS),
    ),
    actions=("review", "block", "approve"),
    two_person=frozenset({"block", "approve"}),
)


class Rules(NamedTuple):
    """The rules that are kept, ready for every stage.

    Attributes:
        in_force: To be asked.
        asked: Stage → what it computes for them.
        version: Which set of rules this is, as a short text; empty: none.
    """

    in_force: InForce
    asked: dict[str, Asked]
    version: str


def make_rules(in_force: InForce, entries: Mapping[str, Entry]) -> Rules:
    """Return rules with what each stage must compute for them."""
    uses = {use for match in in_force.rules for use in match.condition.uses}
    stages: dict[str, Asked] = {}
    for text, use in sorted({text_of(u): u for u in uses}.items()):
        if stage := entity_of(use):
            stages.setdefault(stage, {})[text] = asked(use)
    asked_now = sorted((m.rule.id, m.version, m.rule.when, m.rule.action) for m in in_force.rules)
    steps = [(id, v.number, v.plan) for id, e in sorted(entries.items()) for v in e.versions]
    digest = hashlib.blake2b(repr((asked_now, steps)).encode(), digest_size=5).hexdigest()
    return Rules(in_force, stages, digest if asked_now else "")


_ready = view_of(LANGUAGE)
_made: dict[int, tuple[InForce, Rules]] = {}


def rules_view(entries: Iterable[tuple[str, Entry]]) -> Rules:
    """Return the rules ready to be asked; what was made is kept by content, once per worker."""
    kept = dict(entries)
    in_force = _ready(kept.items())
    found = _made.get(id(in_force))
    if found is None or found[0] is not in_force:
        if len(_made) >= 16:
            _made.clear()
        found = _made[id(in_force)] = (in_force, make_rules(in_force, kept))
    return found[1]


def check_reach(rule: Rule, entities: Iterable[str]) -> list[str]:
    """Return what a rule asks for that no stage computes: there it is missing, and the rule may never hold.

    Args:
        rule: A rule that the language accepts.
        entities: The stages that run beside the card's.

    >>> check_reach(Rule("r", "count(device, 1 h) > 5", "review"), ["terminal"])
    ["the stage 'device' does not run: count(device, 3600000) is missing"]
    >>> check_reach(Rule("r", "terminal_labels.risk_7d > 0.2", "review"), [])
    ["the stage 'terminal' does not run: terminal_labels.risk_7d is missing"]
    """
    reach = {"card", "", *entities}
    condition = LANGUAGE.condition(rule.when)
    uses = sorted(condition.uses, key=text_of)
    found = [
        f"the stage '{entity_of(u)}' does not run: {text_of(u)} is missing"
        for u in uses
        if entity_of(u) not in reach
    ]
    found += [
        f"{text_of(u)} is always missing: an entity counts its cards"
        for u in uses
        if u.name == "distinct" and entity_of(u) not in ("card", "") and u.arguments[0] != "card"
    ]
    if "terminal" not in reach:
        told = sorted(name for name in condition.fields if name.startswith(TERMINAL_LABELS))
        found += [f"the stage 'terminal' does not run: {name} is missing" for name in told]
    return found
