"""Tokenisation of card numbers in a stream's records, in the workers that read them first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.privacy.fields import Treatment
from millrace.privacy.keys import TokenKeys
from millrace.privacy.masking import Masker


@dataclass(frozen=True)
class CardNumbers:
    """Opens a :class:`~millrace.privacy.masking.Masker` where records are read; holds no key.

    Args:
        keys: Where the keys are.
        fields: Name of a field → how it is treated.
    """

    keys: TokenKeys
    fields: Mapping[str, Treatment] = field(default_factory=dict)

    def open(self) -> Masker:
        """Return what replaces them.

        Raises:
            TokenKeyError: This machine has no such keys.
        """
        return Masker(self.keys.ring().token, self.fields)
