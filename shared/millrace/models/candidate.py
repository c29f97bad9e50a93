"""Candidates: what a training hands over to the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.models.calibration import Calibration
from millrace.models.files import TREES
from millrace.models.manifest import Kind


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A trained model, and what is to be known of it.

    Attributes:
        estimator: The model: a scikit-learn estimator that skops can store.
        inputs: The features that it takes, in order.
        since_ms: Event time of the oldest row that it was trained on, UTC ms.
        until_ms: Event time of the newest.
        rows: How many rows these are.
        features_version: Version of the definitions of the features.
        kind: What its scores say.
        calibration: From scores to probabilities, if they are to be.
        threshold: From this score on something is done, if that is the model's affair.
        metrics: How good it was on what was held back; finite numbers.
        tables: Delta table → the version of it that was read.
        facts: What lists and cards tell of it, in short: texts and numbers.
        about: What else the app keeps of it, as JSON can say it.
        trusted: Types that its file holds beside those that skops trusts.
    """

    estimator: Any
    inputs: tuple[str, ...]
    since_ms: int
    until_ms: int
    rows: int
    features_version: int = 1
    kind: Kind = "classifier"
    calibration: Calibration | None = None
    threshold: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, int] = field(default_factory=dict)
    facts: Mapping[str, str | int | float] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    trusted: tuple[str, ...] = TREES
