"""Recorded payments: reading their files, and making the records that a topic would bring."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.errors import UserError
from millrace.runtime.replay import RecordFiles
from millrace_apps.fraud.handbook.events import Payment

#: Columns of the Handbook's tables that must be there; ``TX_FRAUD_SCENARIO`` may be.
NEEDED: Final = ("TRANSACTION_ID", "TX_DATETIME", "CUSTOMER_ID", "TERMINAL_ID", "TX_AMOUNT", "TX_FRAUD")
SCENARIO: Final = "TX_FRAUD_SCENARIO"


class UnfitTransactions(UserError):
    """A file of transactions cannot be used."""


def read_transactions(files: Sequence[Path]) -> pd.DataFrame:
    """Read transactions in the Handbook's columns, by time and identity, ``at`` (ms) added.

    Args:
        files: Parquet files that follow each other.

    Raises:
        UnfitTransactions: A file is missing or lacks a column, or a transaction comes twice.
    """
    frames = [_read(path) for path in files]
    if not frames:
        raise UnfitTransactions("no file of transactions")
    table = pd.concat(frames, ignore_index=True) if len(frames) > 1 else frames[0]
    if SCENARIO not in table or table[SCENARIO].isna().any():
        table = table.drop(columns=[SCENARIO], errors="ignore")
    if table[list(NEEDED)].isna().any(axis=None):
        raise UnfitTransactions("some transactions have empty fields")
    twice = table["TRANSACTION_ID"].duplicated()
    if twice.any():
        raise UnfitTransactions(
            f"transaction {table['TRANSACTION_ID'][twice].iloc[0]} comes twice: do two files overlap?"
        )
    at = table["TX_DATETIME"].astype("datetime64[ms]").astype("int64")
    return table.assign(at=at).sort_values(["at", "TRANSACTION_ID"], ignore_index=True)


def _read(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise UnfitTransactions(f"there is no file {path}")
    try:
        names = pq.read_schema(path).names
        missing = [name for name in NEEDED if name not in names]
        if missing:
            raise UnfitTransactions(f"{path} has no column {', '.join(missing)}")
        table = pq.read_table(path, columns=[n for n in names if n in (*NEEDED, SCENARIO)])
    except (pa.ArrowException, OSError) as error:
        raise UnfitTransactions(f"{path} is not a Parquet file: {error}") from error
    return pd.DataFrame(table.to_pandas())


def identity(number: int) -> str:
    """Return a transaction's number as text that sorts as the numbers do.

    >>> identity(42)
    '000000000042'
    """
    return f"{number:012}"


def payments(transactions: pd.DataFrame) -> Iterator[Payment]:
    """Yield transactions as the pipeline takes them."""
    columns = zip(
        transactions["TRANSACTION_ID"].tolist(),
        transactions["at"].tolist(),
        transactions["CUSTOMER_ID"].astype(str).tolist(),
        transactions["TERMINAL_ID"].astype(str).tolist(),
        transactions["TX_AMOUNT"].tolist(),
        transactions["TX_FRAUD"].astype(bool).tolist(),
        strict=True,
    )
    for number, at, customer, terminal, amount, fraud in columns:
        yield Payment(identity(number), at, customer, terminal, amount, fraud)


def write_records(transactions: pd.DataFrame, folder: Path, topic: str, batch: int) -> int:
    """Write transactions as the files of a replay, a file per batch; return how many batches.

    Args:
        transactions: As :func:`read_transactions` gives them.
        folder: Where the files go.
        topic: Topic of the records.
        batch: Records per batch.
    """
    files = RecordFiles(folder)
    starts = range(0, len(transactions), batch)
    encode = msgspec.json.Encoder().encode
    for start in starts:
        part = transactions.iloc[start : start + batch]
        values = [encode(payment) for payment in payments(part)]
        files.add_columns(topic, values, timestamps_ms=part["at"].tolist())
    return len(starts)


def numbers(transaction_ids: Iterable[str]) -> npt.NDArray[np.int64]:
    """Return the numbers behind :func:`identity`."""
    return np.array(list(transaction_ids), dtype=object).astype(np.int64)
