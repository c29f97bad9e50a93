"""Comparison of served answers with the decisions of the stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

#: Folder of the journal, under storage.root.
JOURNAL: Final = "served"
#: The table of differences, under storage.root.
TABLE: Final = "served_differences"
#: What is compared, and how far numbers may be apart.
_COMPARED: Final = ("action", "score", "model_score", "rules", "rules_version", "model_version")
_CLOSE: Final = 1e-9


@dataclass
class Comparison:
    """What was answered and what was decided.

    Attributes:
        answered: Payments that were answered, and handed on as far as is known.
        decided: Of these, those on which the stream has decided.
        alike: Of these, those with the same of everything that is compared.
        fields: What is compared → how many differ in it.
        actions: (answered, decided) → how many, where the actions differ.
        differences: A row per field that differs.
    """

    answered: int = 0
    decided: int = 0
    alike: int = 0
    fields: Counter[str] = field(default_factory=Counter)
    actions: Counter[tuple[str, str]] = field(default_factory=Counter)
    differences: list[dict[str, Any]] = field(default_factory=list)

    def as_data(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "answered": self.answered,
            "decided": self.decided,
            "alike": self.alike,
            "differ": self.decided - self.alike,
            "fields": dict(sorted(self.fields.items())),
            "actions": {f"{a} → {b}": n for (a, b), n in sorted(self.actions.items())},
        }


def compared(answers: Iterable[Mapping[str, Any]], decisions: Iterable[Mapping[str, Any]]) -> Comparison:
    """Compare answers with decisions.

    Args:
        answers: Lines of the journal; of a payment the last one counts.
        decisions: Rows of the table ``transactions``.

    Example:
        >>> said = {"card_id": "c", "transaction_id": "t", "status": "decided", "action": "approve"}
        >>> found = compared([said], [{"card_id": "c", "transaction_id": "t", "action": "block"}])
        >>> found.as_data()["actions"], found.differences[0]["field"]
        ({'approve → block': 1}, 'action')
    """
    last = {(one["card_id"], one["transaction_id"]): one for one in answers}
    asked = {key: one for key, one in last.items() if not one.get("refused")}
    found = Comparison(answered=len(asked))
    for row in decisions:
        answer = asked.pop((row["card_id"], row["transaction_id"]), None)
        if answer is None:
            continue
        found.decided += 1
        differ = [name for name in _COMPARED if not _same(answer.get(name), row.get(name))]
        found.alike += not differ
        found.fields.update(differ)
        if "action" in differ:
            found.actions[str(answer.get("action")), str(row.get("action"))] += 1
        for name in differ:
            found.differences.append(
                {
                    "transaction_id": row["transaction_id"],
                    "card_id": row["card_id"],
                    "event_time_ms": row.get("event_time_ms"),
                    "served_at_ms": answer.get("served_at_ms"),
                    "batch": answer.get("batch"),
                    "seen_since": answer.get("seen_since"),
                    "status": answer.get("status"),
                    "field": name,
                    "served": _text(answer.get(name)),
                    "decided": _text(row.get(name)),
                }
            )
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= _CLOSE
    return (one or None) == (other or None)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def decisions_of(path: str, keys: Iterable[str]) -> list[dict[str, Any]]:
    """Return the rows of the table ``transactions`` with these transaction ids.

    Args:
        path: The table's folder.
        keys: The transaction ids.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from deltalake import DeltaTable

    wanted = pa.array(sorted(set(keys)), pa.string())
    names = ["transaction_id", "card_id", "event_time_ms", *_COMPARED]
    table = DeltaTable(path).to_pyarrow_dataset()
    rows = table.to_table(
        columns=[name for name in names if name in table.schema.names],
        filter=pc.field("transaction_id").isin(wanted),
    )
    found: list[dict[str, Any]] = rows.to_pylist()
    return found


def write_differences(path: Path, found: Comparison) -> None:
    """Write the table of differences anew."""
    import pyarrow as pa
    from deltalake import write_deltalake

    text, number = pa.string(), pa.int64()
    schema = pa.schema(
        [
            ("transaction_id", text), ("card_id", text), ("event_time_ms", number), ("served_at_ms", number),
            ("batch", number), ("seen_since", number), ("status", text), ("field", text), ("served", text),
            ("decided", text),
        ]
    )  # fmt: skip
    write_deltalake(str(path), pa.Table.from_pylist(found.differences, schema), mode="overwrite")
