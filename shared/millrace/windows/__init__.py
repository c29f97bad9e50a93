"""Windows over event time: which events belong together, when there is a result, and what it is.

A window is defined and made a process in one expression, and any host runs it::

    per_minute = window(Click, tumbling(minutes(1)), allowed_lateness=minutes(5)).aggregate(
        n=count(), total=sum_of("amount"), p99=quantile("ms", 0.99)
    )
"""

# Each of these has kinds of windows, which it registers.
from millrace.windows import counted, per_event, ranges, sessions  # noqa: F401
from millrace.windows.aggregates import Aggregate, count, max_of, mean, min_of, stddev, sum_of, variance
from millrace.windows.assigners import (
    count_hopping,
    count_sliding,
    count_tumbling,
    global_window,
    hopping,
    lookback,
    session,
    sliding,
    tumbling,
)
from millrace.windows.binned import binned_quantile
from millrace.windows.building import Window, queue_of, window
from millrace.windows.definition import WindowDefinition
from millrace.windows.fields import WindowDefinitionError
from millrace.windows.process import WindowProcess, build
from millrace.windows.sketches import approx_count_distinct, quantile
from millrace.windows.triggers import Trigger, watermark
from millrace.windows.value_aggregates import (
    collect,
    count_distinct,
    custom,
    distinct,
    first,
    last,
    reduce,
    top_n,
)

__all__ = [
    "Aggregate",
    "Trigger",
    "Window",
    "WindowDefinition",
    "WindowDefinitionError",
    "WindowProcess",
    "approx_count_distinct",
    "binned_quantile",
    "build",
    "collect",
    "count",
    "count_distinct",
    "count_hopping",
    "count_sliding",
    "count_tumbling",
    "custom",
    "distinct",
    "first",
    "global_window",
    "hopping",
    "last",
    "lookback",
    "max_of",
    "mean",
    "min_of",
    "quantile",
    "queue_of",
    "reduce",
    "session",
    "sliding",
    "stddev",
    "sum_of",
    "top_n",
    "tumbling",
    "variance",
    "watermark",
    "window",
]
