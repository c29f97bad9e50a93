"""The recommendation rules as `millrace rules clickstream` goes by them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from millrace.operations.app_rules import AppRules
from millrace.rules import Rule, RuleEvent
from millrace_apps.clickstream.recommend.filters import BUILT_IN, LANGUAGE, read_filters
from millrace_apps.clickstream.settings import ClickstreamSettings


def _warnings(rule: Rule, settings: ClickstreamSettings) -> Iterable[str]:
    """Say what of a rule will not work."""
    if not settings.recommend.on:
        yield "nothing is recommended: recommend.on is off"


RULES: Final = AppRules(
    app="clickstream",
    settings=ClickstreamSettings,
    control=RuleEvent,
    language=lambda settings: LANGUAGE,
    read=read_filters,
    words=lambda about: LANGUAGE.describe(),
    warnings=_warnings,
    built_in=lambda settings: list(BUILT_IN),
)
