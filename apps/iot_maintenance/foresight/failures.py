"""Failures as the table ``maintenance`` has them: from when a machine broke until it was repaired."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

#: Columns of the table ``maintenance`` that say when a machine failed.
REPAIR_COLUMNS: Final = ("machine_id", "component", "event_time_ms", "kind", "duration_ms", "failed_ms")
#: Those of them that a table of an earlier version lacks.
LATER_COLUMNS: Final = ("failed_ms",)


def failures_of(repairs: pd.DataFrame) -> pd.DataFrame:
    """Return the failures that repairs ended.

    Args:
        repairs: Rows of ``maintenance``, shape (n, …); ``failed_ms`` may not be there, or not in every row.

    Returns:
        The corrective ones, with ``failed_ms``: when the machine broke, UTC ms. Where nobody has said so,
        that is when the work began; ``event_time_ms`` stays its end.

    Example:
        >>> import pandas as pd
        >>> row = {"machine_id": "m", "component": "c", "kind": "corrective", "duration_ms": 30}
        >>> told = pd.DataFrame([{**row, "event_time_ms": 90}, {**row, "event_time_ms": 99, "failed_ms": 7}])
        >>> failures_of(told)["failed_ms"].tolist()
        [60, 7]
    """
    import pandas as pd

    found = repairs[repairs["kind"] == "corrective"].reset_index(drop=True)
    done = found["event_time_ms"].astype("int64")
    took = pd.to_numeric(found["duration_ms"]).fillna(0).astype("int64") if "duration_ms" in found else 0
    began = done - took
    if "failed_ms" in found:
        told = found["failed_ms"].astype("Int64")
        began = told.fillna(began).astype("int64").clip(upper=done)
    return found.assign(failed_ms=began)


def is_broken(machines: Any, at: Any, failures: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return whether machines were broken or being repaired, shape (n,).

    Args:
        machines: Which machine, shape (n,).
        at: When, UTC ms, shape (n,).
        failures: As :func:`failures_of` has them.

    Example:
        >>> import pandas as pd
        >>> of = pd.DataFrame({"machine_id": ["m"], "failed_ms": [5], "event_time_ms": [8]})
        >>> is_broken(["m"] * 4, [4, 5, 7, 8], of).tolist()
        [False, True, True, False]
    """
    times = np.asarray(at, dtype=np.int64)
    found = np.zeros(len(times), dtype=bool)
    names, place = np.unique(np.asarray(machines, dtype=object), return_inverse=True)
    order = np.lexsort((times, place))
    starts = np.searchsorted(place[order], np.arange(len(names) + 1))
    where = {name: number for number, name in enumerate(names.tolist())}
    columns = (failures[name].tolist() for name in ("machine_id", "failed_ms", "event_time_ms"))
    for machine, failed, done in zip(*columns, strict=True):
        if (number := where.get(machine)) is not None:
            rows = order[starts[number] : starts[number + 1]]
            first, last = np.searchsorted(times[rows], (failed, done))
            found[rows[first:last]] = True
    return found
