"""A checkpoint of each version of the encoding is opened by this one, and nothing in it is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.checkpoints.checkpoint import Checkpoint
from millrace.checkpoints.conversion import convert
from millrace.runtime.contract import CONTRACT_FILE, ContractMismatch, check_contract, refuse_older
from millrace.state.layout import ENCODING_VERSION
from tests.spark.conftest import StreamFactory
from tests.spark.golden_checkpoint import BOUND, DATA, SCHEMA, Everything, batches, build, unpack
from tests.spark.mirror import Mirror, comparable, to_row

VERSIONS = sorted(folder.name for folder in DATA.iterdir())


def test_there_is_a_checkpoint_of_this_version() -> None:
    assert f"v{ENCODING_VERSION}" in VERSIONS
    assert all((DATA / version / "checkpoint.zip").stat().st_size < 300_000 for version in VERSIONS)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_kept_checkpoint_goes_on_as_if_it_had_never_stopped(stream: StreamFactory, version: str) -> None:
    mirror = Mirror(Everything(), BOUND)
    for batch in batches("before"):
        mirror.batch(batch, key="who", at="at")
    mirror.end_run()
    entries = [mirror.runner.layout.decode(cell.body) for cell in mirror.store.cells.values()]
    assert any(entry.pending_ for entry in entries), "no event waits in the checkpoint"
    assert all(any(getattr(entry, s.name) for entry in entries) for s in mirror.runner.layout.specs)
    before = len(mirror.runner.emissions)
    for batch in batches("after"):
        mirror.batch(batch, key="who", at="at")
    mirror.end_run()
    assert not mirror.store.cells
    made = stream(SCHEMA, build)
    root: Path = made.checkpoint.parent
    unpack(DATA / version / "checkpoint.zip", root)
    (root / "contract" / CONTRACT_FILE).rename(root / CONTRACT_FILE)
    if version == "v2":  # of the time when Spark kept the clock
        convert(made._spark, Checkpoint(root, made.checkpoint))
    made._files = len(batches("before"))  # the names of these are taken
    for batch in batches("after"):
        made.add([to_row(item) for item in batch])
    made.run()
    found, expected = made.emitted, mirror.runner.emissions[before:]
    if version == "v2":  # its timers know another identity of what they will emit
        found, expected = ([e._replace(event_id=None) for e in of] for of in (found, expected))
    assert comparable(found) == comparable(expected)
    assert made.output is not None
    check_contract(root, made.output.contract())


def test_a_checkpoint_of_before_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    unpack(DATA / "v2" / "checkpoint.zip", tmp_path)
    (tmp_path / "contract" / CONTRACT_FILE).rename(tmp_path / CONTRACT_FILE)
    with pytest.raises(ContractMismatch, match=f"millrace convert {tmp_path}"):
        refuse_older(tmp_path)
    with pytest.raises(ContractMismatch, match="Spark kept the clock"):
        check_contract(tmp_path, {"process": "Everything"})
