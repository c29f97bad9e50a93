"""Manifests: which file a version is, what it takes, what it was made of and how good it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from millrace.errors import MillraceError

#: Version of this form; a later one is refused.
FORMAT: Final = 1
#: Tag of a registered version: the digest of its file.
SHA256_TAG: Final = "sha256"
#: What a score says: a probability, a quantity, how unusual something is, how well something fits.
Kind = Literal["classifier", "regressor", "anomaly", "recommender"]

_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
_Features = Annotated[tuple[str, ...], msgspec.Meta(min_length=1, max_length=10_000)]


class BrokenModel(MillraceError):
    """A model was read and cannot be what it says it is."""


class Curve(msgspec.Struct, frozen=True):
    """A calibration's two numbers.

    Attributes:
        slope: Slope over the log-odds.
        intercept: Intercept.
    """

    slope: float
    intercept: float


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a model, without the model itself.

    Attributes:
        name: Name under which it is registered.
        version: Its version.
        size: Bytes of the model's file.
        sha256: SHA-256 of the file, in hexadecimal; the file is called by it.
        inputs: The features that it takes, in order.
        features_version: Version of the definitions of these features.
        kind: What its scores say.
        calibration: From scores to probabilities; ``None``: scores are told as they are.
        threshold: From this score on something is done; ``None``: that is not the model's affair.
        trained_since_ms: Event time of the oldest row that it was trained on, UTC ms.
        trained_until_ms: Event time of the newest.
        tables: Delta table → the version of it that was read for training.
        metrics: How good it was on what was held back.
        requirements: Package → the version that it was trained with.
        about: What else its app keeps of it.
        format: Version of this form.

    Example:
        >>> made = Manifest(name="wear", version="1", size=3, sha256="0" * 64, inputs=("load",))
        >>> decoded(encoded(made)) == made
        True
    """

    name: _Name
    version: _Name
    size: Annotated[int, msgspec.Meta(ge=1)]
    sha256: _Sha256
    inputs: _Features
    features_version: int = 1
    kind: Kind = "classifier"
    calibration: Curve | None = None
    threshold: float | None = None
    trained_since_ms: int = 0
    trained_until_ms: int = 0
    tables: Mapping[str, int] = {}
    metrics: Mapping[str, float] = {}
    requirements: Mapping[str, str] = {}
    about: Mapping[str, Any] = {}
    format: int = FORMAT

    @property
    def file(self) -> str:
        """Name of the model's file."""
        return f"{self.sha256}.skops"


def encoded(manifest: Manifest) -> bytes:
    """Return a manifest as JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decoded(data: bytes) -> Manifest:
    """Return the manifest that JSON holds.

    Raises:
        BrokenModel: It is cut off, is something else, or is of a later form.
    """
    try:
        found = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BrokenModel(f"the manifest is none: {error}") from error
    if found.format != FORMAT:
        raise BrokenModel(f"the manifest has form {found.format}, this version reads form {FORMAT}")
    return found


_decoder: Final = msgspec.json.Decoder(Manifest)
