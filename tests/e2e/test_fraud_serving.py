"""Decisions over HTTP beside the running job, on a real broker: answered, handed on, and alike."""

from __future__ import annotations

import pytest

from millrace_apps.benchmarks.serving import Sizes, serve


@pytest.mark.matrix
def test_payments_that_are_asked_about_are_in_the_stream_which_decides_alike(kafka_bootstrap: str) -> None:
    sizes = Sizes(rate=20, duration_s=4, warm_up_s=1, beside=20, warm_batches=3)
    found = serve(sizes, kafka_bootstrap, [])
    assert found["statuses"] == {"200": 80}
    assert found["correct"]
    told = found["differences"]
    assert told["answered"] == told["decided"] == 100
    # Payments of the generator, of the same cards and terminals, are on their way at the same time.
    assert told["alike"] >= 90
