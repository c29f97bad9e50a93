"""The apps hold to the contract of apps on Spark; what needs no engine is in their own tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from millrace.testing.app_contract import AppOnSpark
from tests.unit.apps.aggregates.test_world import AggregatesWorld
from tests.unit.apps.clickstream.test_world import ClickstreamWorld
from tests.unit.apps.fraud.test_world import FraudWorld
from tests.unit.apps.iot_maintenance.test_world import IotWorld
from tests.unit.apps.ridesharing.test_world import RidesWorld


class InTheSession(AppOnSpark):
    """In the session that all tests share; few events, since what they show is the wiring."""

    spark_events = 300

    @pytest.fixture(autouse=True)
    def _shared(self, spark: SparkSession) -> None:
        self._spark = spark

    def session(self) -> SparkSession:
        return self._spark

    @pytest.mark.matrix  # it is started anew twice, which takes most of a minute
    def test_killed_in_a_batch_it_goes_on_and_nothing_is_twice(self, tmp_path: Path) -> None:
        super().test_killed_in_a_batch_it_goes_on_and_nothing_is_twice(tmp_path)


class TestFraud(InTheSession, FraudWorld):
    pass


class TestIot(InTheSession, IotWorld):
    pass


class TestClickstream(InTheSession, ClickstreamWorld):
    pass


class TestRidesharing(InTheSession, RidesWorld):
    pass


@pytest.mark.matrix
class TestAggregates(InTheSession, AggregatesWorld):
    pass
