"""Token keys of card numbers, by the app's settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from millrace.privacy.fields import treatments
from millrace.privacy.keys import TokenKeyError, keys_in, make_key_file, read_ring
from millrace.privacy.masking import Masker
from millrace.privacy.records import CardNumbers

if TYPE_CHECKING:
    from millrace_apps.fraud.settings import FraudSettings

#: Place of the key that is made at the first start, under ``storage.root``.
_MADE: Final = ("privacy", "token.keys")


def key_file(settings: FraudSettings) -> Path | None:
    """Return the file with the keys; ``None``: card numbers do not become tokens."""
    privacy = settings.privacy
    if privacy.tokens == "off":
        return None
    if privacy.token_key_file is not None:
        return privacy.token_key_file.expanduser().absolute()
    return Path(settings.storage.path(*_MADE))


def make_key(settings: FraudSettings) -> str | None:
    """Make the key under ``storage.root`` where it is wanted and missing.

    Returns:
        What is to be told of it; ``None``: nothing was made.

    Raises:
        TokenKeyError: It cannot be written, or a checkpoint is there whose key is gone.
    """
    path = key_file(settings)
    if path is None or settings.privacy.token_key_file is not None or path.exists():
        return None
    if path.parent.is_dir():
        raise TokenKeyError(
            f"{path} is gone: with another key every card's history begins anew. Put it back from its "
            f"copy, or remove {path.parent} to begin anew"
        )
    make_key_file(path)
    return f"card numbers become tokens by a key made now: keep a copy of {path}, without it histories end"


def card_numbers(settings: FraudSettings, types: Sequence[Any]) -> CardNumbers | None:
    """Return what replaces card numbers in records; ``None``: nothing does.

    Args:
        settings: The app's settings.
        types: Types of all that comes in.

    Raises:
        TokenKeyError: The keys cannot be used.
    """
    make_key(settings)
    path = key_file(settings)
    return None if path is None else CardNumbers(keys_in(path), treatments(types))


def without_numbers(settings: FraudSettings, text: str) -> str:
    """Return a text that an operator gave with tokens in place of card numbers, as far as there is a key.

    Raises:
        TokenKeyError: The keys cannot be used.
    """
    path = key_file(settings)
    if path is None or not path.exists():
        return text
    return Masker(read_ring(path).token).text(text)
