"""The Handbook's 14 features computed with pandas over the whole table: what the stream is compared with.

It shares nothing with :mod:`millrace_apps.fraud.handbook.windows`: the windows are pandas' own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from millrace_apps.fraud.handbook.events import HANDBOOK


def handbook_features(transactions: pd.DataFrame, delay_ms: int) -> pd.DataFrame:
    """Return the 14 features, one row per transaction, in the order of ``transactions``.

    Args:
        transactions: Columns TRANSACTION_ID, TX_DATETIME, CUSTOMER_ID, TERMINAL_ID, TX_AMOUNT, TX_FRAUD.
        delay_ms: Label delay, ms.
    """
    found = pd.DataFrame(index=transactions.index)
    when = transactions["TX_DATETIME"].astype("datetime64[ms]")
    found["weekend"] = (when.dt.weekday >= 5).astype(int)
    found["night"] = (when.dt.hour <= 6).astype(int)
    base = transactions.assign(TX_DATETIME=when, one=1.0, fraud=transactions["TX_FRAUD"].astype(float))
    of_customer = base.sort_values(["CUSTOMER_ID", "TX_DATETIME", "TRANSACTION_ID"])
    for days in (1, 7, 30):
        number = _rolling(of_customer, "CUSTOMER_ID", "TX_AMOUNT", f"{days}D", "count")
        total = _rolling(of_customer, "CUSTOMER_ID", "TX_AMOUNT", f"{days}D", "sum")
        found.loc[of_customer.index, f"customer_count_{days}d"] = number
        found.loc[of_customer.index, f"customer_mean_{days}d"] = total / number
    of_terminal = base.sort_values(["TERMINAL_ID", "TX_DATETIME", "TRANSACTION_ID"])
    delay = pd.Timedelta(delay_ms, unit="ms")
    recent = {c: _rolling(of_terminal, "TERMINAL_ID", c, delay, "sum") for c in ("one", "fraud")}
    for days in (1, 7, 30):
        reach = delay + pd.Timedelta(days, unit="D")
        seen = {c: _rolling(of_terminal, "TERMINAL_ID", c, reach, "sum") - recent[c] for c in recent}
        with np.errstate(invalid="ignore"):
            risk = np.nan_to_num(seen["fraud"] / seen["one"])
        found.loc[of_terminal.index, f"terminal_count_{days}d"] = seen["one"]
        found.loc[of_terminal.index, f"terminal_risk_{days}d"] = risk
    return found[list(HANDBOOK)]


def mismatches(found: pd.DataFrame, expected: pd.DataFrame) -> int:
    """Return in how many rows any of the 14 features differs in any bit.

    Args:
        found: The stream's features.
        expected: Pandas', in the same order of rows.
    """
    if len(found) != len(expected):
        return max(len(found), len(expected))
    differs = np.zeros(len(found), dtype=bool)
    for name in HANDBOOK:
        differs |= found[name].to_numpy(dtype=float) != expected[name].to_numpy(dtype=float)
    return int(differs.sum())


def _rolling(
    table: pd.DataFrame, key: str, column: str, window: str | pd.Timedelta, how: str
) -> npt.NDArray[np.float64]:
    rolled = table.groupby(key, sort=True).rolling(window, on="TX_DATETIME")[column]
    return np.asarray(getattr(rolled, how)(), dtype=float)
