"""Rules as data: conditions typed and compiled from text, with a life that control events change.

An app declares a :class:`Language` (fields, functions, actions); a process keeps rules in broadcast state,
changes them by :func:`apply_rule` and asks them through :func:`view_of`. See ``docs/rules.md``.
"""

from millrace.rules.book import MemoryEntries, apply_list, apply_rule, check_rule
from millrace.rules.compiler import Condition, Use
from millrace.rules.errors import RuleError
from millrace.rules.files import check_rules, read_rules
from millrace.rules.language import Language
from millrace.rules.lists import listed, looked_into
from millrace.rules.matcher import InForce, Match, RuleSet, view_of
from millrace.rules.model import (
    ApproveRule,
    Audit,
    Entry,
    ListEvent,
    PublishRule,
    PutListEntry,
    RemoveListEntry,
    RollbackRule,
    Rule,
    RuleEvent,
    SetRuleState,
    State,
    Version,
    same_person,
)
from millrace.rules.words import Chosen, Constant, Field, FieldName, Function, Pure, Where, Window, Word

__all__ = [
    "ApproveRule",
    "Audit",
    "Chosen",
    "Condition",
    "Constant",
    "Entry",
    "Field",
    "FieldName",
    "Function",
    "InForce",
    "Language",
    "ListEvent",
    "Match",
    "MemoryEntries",
    "PublishRule",
    "Pure",
    "PutListEntry",
    "RemoveListEntry",
    "RollbackRule",
    "Rule",
    "RuleError",
    "RuleEvent",
    "RuleSet",
    "SetRuleState",
    "State",
    "Use",
    "Version",
    "Where",
    "Window",
    "Word",
    "apply_list",
    "apply_rule",
    "check_rule",
    "check_rules",
    "listed",
    "looked_into",
    "read_rules",
    "same_person",
    "view_of",
]
