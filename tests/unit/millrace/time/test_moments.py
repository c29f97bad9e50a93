"""Points in time as people write them, against Python's own arithmetic of dates."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from random import Random

import pytest

from millrace.errors import UserError
from millrace.time.moments import show_time, to_time_ms

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_a_time_is_that_of_its_zone_and_utc_without_one() -> None:
    random = Random(2)
    for _ in range(10_000):
        ms = random.randrange(0, 253_402_300_799_999 - 86_400_000)
        zone = timezone(timedelta(minutes=random.randrange(-14 * 60, 14 * 60)))
        moment = EPOCH + timedelta(milliseconds=ms)
        assert to_time_ms(moment.isoformat()) == ms
        assert to_time_ms(moment.replace(tzinfo=None).isoformat()) == ms
        assert to_time_ms(str(ms)) == ms
        assert show_time(ms) == moment.replace(microsecond=0, tzinfo=None).isoformat() + "Z"
        if timedelta(days=1) < moment - EPOCH:
            assert to_time_ms(moment.astimezone(zone).isoformat()) == ms


@pytest.mark.parametrize("text", ["", "tomorrow", "²", "-5", "2026-13-01", "12:00", "1e6"])
def test_what_is_no_time_is_told(text: str) -> None:
    with pytest.raises(UserError, match="is no time: write for example 2026-01-31T12:00"):
        to_time_ms(text)
