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
from millrace.experiments.switchback import (
    ArmBlocks,
    Observation,
    Switchback,
    SwitchbackReport,
    compare_blocks,
)

__all__ = [
    "HOLDOUT",
    "ArmBlocks",
    "ArmFigures",
    "Comparison",
    "Experiment",
    "ExperimentError",
    "Exposure",
    "Observation",
    "Outcome",
    "Report",
    "SampleRatio",
    "Switchback",
    "SwitchbackReport",
    "assign",
    "compare",
    "compare_blocks",
    "difference_of_shares",
    "interval_of",
    "sample_ratio",
    "share",
]
