"""Experiments: who is in which arm, and what the arms have done; nothing here knows an app or an engine."""

from millrace.experiments.assignment import HOLDOUT, Experiment, ExperimentError, assign, share
from millrace.experiments.comparison import (
    ArmFigures,
    Comparison,
    Exposure,
    Outcome,
    Report,
    SampleRatio,
    compare,
    difference_of_shares,
    interval_of,
    sample_ratio,
)

__all__ = [
    "HOLDOUT",
    "ArmFigures",
    "Comparison",
    "Experiment",
    "ExperimentError",
    "Exposure",
    "Outcome",
    "Report",
    "SampleRatio",
    "assign",
    "compare",
    "difference_of_shares",
    "interval_of",
    "sample_ratio",
    "share",
]
