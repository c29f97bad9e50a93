"""A number of shuffle partitions that only costs time is told with a better one; a good one is not."""

from __future__ import annotations

import doctest

import pytest

from millrace.host import spark_partitions
from millrace.host.spark_partitions import too_many_partitions


@pytest.mark.parametrize(
    ("partitions", "key_groups", "cores", "better"),
    [
        pytest.param(200, 64, 2, "2, the number of cores", id="spark's default on a laptop"),
        pytest.param(
            200, 64, None, "the number of cores that the job has, at most 64", id="and on a cluster"
        ),
        pytest.param(65, 64, 32, "32, the number of cores", id="one that no key group is in"),
        pytest.param(65, 64, 96, "64", id="more cores than key groups"),
        pytest.param(9, 64, 2, "2, the number of cores", id="too many for the cores"),
    ],
)
def test_too_many_partitions_are_told_with_how_many_would_be_right(
    partitions: int, key_groups: int, cores: int | None, better: str
) -> None:
    told = too_many_partitions(partitions, key_groups, cores)
    assert told is not None
    assert told.startswith(f"spark.sql.shuffle.partitions is {partitions}: ")
    assert f"set it to {better}, before the first batch" in told


@pytest.mark.parametrize(
    ("partitions", "key_groups", "cores"),
    [
        pytest.param(8, 64, 2, id="a few for each core"),
        pytest.param(200, 256, None, id="a large cluster"),
        pytest.param(64, 64, None, id="a key group each"),
        pytest.param(1, 1, 1, id="one of all"),
    ],
)
def test_nothing_is_said_of_partitions_that_can_be_used(
    partitions: int, key_groups: int, cores: int | None
) -> None:
    assert too_many_partitions(partitions, key_groups, cores) is None


def test_the_example_says_what_is_said() -> None:
    assert doctest.testmod(spark_partitions).failed == 0
