"""Patterns of events (complex event processing): what comes after what, how often, in what time.

A pattern is written part by part, made a process, and any host runs it::

    small_then_large = (
        begin("small").where(lambda t: t.amount < 1)
        .next("large").where(lambda t: t.amount > 500)
        .within(minutes(1))
    )
    process = detect(Transaction, small_then_large, after_match=skip_past_last())
"""

from millrace.patterns.conditions import PatternDefinitionError
from millrace.patterns.definition import Part, Pattern, begin
from millrace.patterns.process import Detection, PatternProcess, build, detect, matcher_of
from millrace.patterns.skip import Skip, no_skip, skip_past_last, skip_to_first, skip_to_last, skip_to_next

__all__ = [
    "Detection",
    "Part",
    "Pattern",
    "PatternDefinitionError",
    "PatternProcess",
    "Skip",
    "begin",
    "build",
    "detect",
    "matcher_of",
    "no_skip",
    "skip_past_last",
    "skip_to_first",
    "skip_to_last",
    "skip_to_next",
]
