"""Dead letters after the fact: what is in an app's table, why, and sending it again."""

from millrace.dlq.letters import DeadLetterTable, Letter, LetterError, Selection
from millrace.dlq.replay import Original, Outgoing, Plan, Replay, Summary, Undelivered
from millrace.dlq.stats import Stats, stats_of

__all__ = [
    "DeadLetterTable",
    "Letter",
    "LetterError",
    "Original",
    "Outgoing",
    "Plan",
    "Replay",
    "Selection",
    "Stats",
    "Summary",
    "Undelivered",
    "stats_of",
]
