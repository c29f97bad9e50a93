"""Status mapping: from the words of controllers to the regimes of KPIs and rules.

Every plant has words of its own. Those of PackML (ISA-TR88.00.02) are known, whatever their case, and so are
the regimes' own names; a plant maps its others in its fleet's file. A word that nobody has mapped is no
regime: its time is told apart, and the word is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, get_args

#: What a machine does: it makes parts; it could, and does not; it is being set up; it is maintained by plan,
#: or repaired after a failure; it is broken; nobody wants it to.
Regime = Literal["producing", "idle", "setup", "maintenance", "failed", "off"]
REGIMES: Final[tuple[Regime, ...]] = get_args(Regime)
#: The master data attribute that names a machine's vocabulary.
VOCABULARY: Final = "vocabulary"

_PACKML: Final[Mapping[str, Regime]] = {
    "execute": "producing",
    "idle": "idle",
    "starting": "idle",
    "completing": "idle",
    "complete": "idle",
    "completed": "idle",
    "resetting": "idle",
    "holding": "idle",
    "held": "idle",
    "unholding": "idle",
    "suspending": "idle",
    "suspended": "idle",
    "unsuspending": "idle",
    "stopping": "idle",
    "stopped": "idle",
    "aborting": "failed",
    "aborted": "failed",
    "clearing": "failed",
}
#: Words beside these and the regimes' own names.
_USUAL: Final[Mapping[str, Regime]] = {"running": "producing", "overload": "producing"}
_KNOWN: Final[Mapping[str, Regime]] = {**{name: name for name in REGIMES}, **_USUAL, **_PACKML}


def _plain(word: str) -> str:
    return "".join(sign for sign in word.casefold() if sign.isalnum()) or word


@dataclass(frozen=True)
class Statuses:
    """The words of a plant.

    Attributes:
        words: Word → regime, beside and before PackML's.
        vocabularies: Name → words of the machines whose master data name it (attribute ``vocabulary``),
            before all others.

    Example:
        >>> plant = Statuses({"Störung": "failed"}, {"press": {"3": "producing"}})
        >>> plant.regime("Execute"), plant.regime("STÖRUNG"), plant.regime("3", "press"), plant.regime("3")
        ('producing', 'failed', 'producing', None)
    """

    words: Mapping[str, Regime] = field(default_factory=dict)
    vocabularies: Mapping[str, Mapping[str, Regime]] = field(default_factory=dict)

    def regime(self, word: str | None, vocabulary: str = "") -> Regime | None:
        """Return what a word means, ``None`` if nobody has said; ``word`` is ``None`` before the first."""
        if word is None:
            return None
        own = self.vocabularies.get(vocabulary) if vocabulary else None
        for words in (own, self.words):
            if words:
                if word in words:
                    return words[word]
                plain = _plain(word)
                for name, regime in words.items():
                    if _plain(name) == plain:
                        return regime
        return _known(word)


@lru_cache(maxsize=10_000)
def _known(word: str) -> Regime | None:
    return _KNOWN.get(_plain(word))
