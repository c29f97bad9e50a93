"""The language of an app's rules: what can be said, and what a text of it means."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.rules.compiler import Condition, compile_condition
from millrace.rules.words import Vocabulary


@dataclass(frozen=True)
class Language(Vocabulary):
    """The fields, functions and actions of an app's rules.

    Attributes:
        fields: Name → field.
        functions: The app's functions; :data:`COMMON` and ``coalesce(a, b)`` are always there.
        actions: What a rule may ask for; empty: rules have no action.
        two_person: Actions whose rules a second person must approve before they are active.

    Example:
        >>> from types import SimpleNamespace as Event
        >>> from millrace.rules.words import Field
        >>> language = Language({"amount": Field("number"), "mcc": Field("text", nullable=True)})
        >>> condition = language.condition("amount > 500 and mcc in ('5411', '5999')")
        >>> condition.holds(Event(amount=600.0, mcc="5411")), condition.holds(Event(amount=600.0, mcc=None))
        (True, False)
        >>> try:
        ...     language.condition("amont > 500")
        ... except Exception as error:
        ...     print(error)
        line 1, column 1: there is no field 'amont'; did you mean amount?
    """

    def condition(self, text: str) -> Condition:
        """Return the condition that a text writes.

        Raises:
            RuleError: The text is no condition of this language; says where and why.
        """
        return compile_condition(self, text)
