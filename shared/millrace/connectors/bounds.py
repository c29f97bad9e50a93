"""What the log is told of a file that was made of others, by its own footer: nulls and bounds of columns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData, Statistics

#: Longer texts are cut off where they are the bounds of a column.
_BOUND_LENGTH: Final = 64


def statistics_of(path: Path, made_of: Sequence[Mapping[str, Any]]) -> str:
    """Return what the log is told of a file: of the columns that it knows of others.

    Bounds are told of all of these columns that have values, or of none. Where they are told of some, the
    library's datasets take those of the others for null, which no value is within, and leave the file out.

    Args:
        path: Where it is.
        made_of: What the log says of the files that it was made of: ``num_records``, ``min.a`` ….
    """
    import msgspec
    import pyarrow.parquet as pq
    import pyarrow.types as types

    known = {key.partition(".")[2] for one in made_of for key, value in one.items() if value is not None}
    footer = pq.read_metadata(path)
    nulls: dict[str, int] = {}
    bounds: dict[str, tuple[Any, Any]] = {}
    is_bounded = True
    for field in footer.schema.to_arrow_schema():
        if field.name not in known or types.is_nested(field.type) or types.is_binary(field.type):
            continue
        found_in = _statistics_in(footer, field.name)
        parts = [part for part in found_in if part is not None]
        if len(parts) < len(found_in):
            is_bounded = False
            continue
        nulls[field.name] = sum(part.null_count for part in parts)
        if nulls[field.name] < footer.num_rows:
            found = _bounds(parts)
            is_bounded = is_bounded and found is not None
            bounds |= {} if found is None else {field.name: found}
    said: dict[str, Any] = {"numRecords": footer.num_rows, "nullCount": nulls}
    if is_bounded and bounds:
        said["minValues"] = {name: least for name, (least, _) in bounds.items()}
        said["maxValues"] = {name: greatest for name, (_, greatest) in bounds.items()}
    return msgspec.json.Encoder(decimal_format="number").encode(said).decode()


def _statistics_in(footer: FileMetaData, column: str) -> list[Statistics | None]:
    """Return what a file's footer says of a column, of each row group that has rows."""
    groups = [group for group in map(footer.row_group, range(footer.num_row_groups)) if group.num_rows]
    return [
        found.statistics
        for group in groups
        for found in map(group.column, range(group.num_columns))
        if found.path_in_schema == column
    ]


def _bounds(parts: Sequence[Statistics]) -> tuple[Any, Any] | None:
    """Return the least and the greatest value as the log can have them; ``None``: it cannot.

    What is no number is no bound, as in the files that the library writes.
    """
    floats = ("FLOAT", "DOUBLE")
    valued = [
        part for part in parts if part.num_values and (part.has_min_max or part.physical_type not in floats)
    ]
    if not valued or not all(part.has_min_max for part in valued):
        return None
    least, greatest = min(part.min for part in valued), max(part.max for part in valued)
    if isinstance(greatest, float) and not (math.isfinite(least) and math.isfinite(greatest)):
        return None
    if not isinstance(greatest, str):
        return least, greatest
    above = _above(greatest)
    return None if above is None else (least[:_BOUND_LENGTH], above)


def _above(text: str) -> str | None:
    """Return a short text that is not less than a text; ``None``: there is none.

    >>> _above("ab"), _above("ab" + "c" * 100) == "ab" + "c" * 61 + "d", _above(chr(0x10FFFF) * 100)
    ('ab', True, None)
    """
    if len(text) <= _BOUND_LENGTH:
        return text
    last = text[_BOUND_LENGTH - 1]
    if last in ("\ud7ff", "\U0010ffff"):
        return None
    return text[: _BOUND_LENGTH - 1] + chr(ord(last) + 1)
