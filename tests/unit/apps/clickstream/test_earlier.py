"""Checkpoints of earlier versions, as `millrace convert clickstream` takes them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from millrace.checkpoints.conversion import converted, needs_conversion
from millrace.checkpoints.rescale import RescaleError
from millrace.topology.contract import contract_of
from millrace_apps.clickstream.app import app
from millrace_apps.clickstream.settings import ClickstreamSettings

#: What came with orders: members of the second and third process, with their inputs and states.
NEW = {"Entities": ("orders",), "Reactions": ("revenue", "orders_valued")}


def before_orders(now: dict[str, Any]) -> dict[str, Any]:
    """The contract as it was when orders were attributions alone."""
    kept = copy.deepcopy(now)
    for link in kept["links"]:
        gone = NEW.get(link["process"], ())
        if not gone:
            continue
        link["version"] = 3
        for name in gone:
            link["definition"]["members"].pop(name, None)
        link["inputs"] = [name for name in link["inputs"] if not name.startswith(gone)]
        link["takes"] = {n: takes for n, takes in link["takes"].items() if not n.startswith(gone)}
        link["key"] = [link["key"][0].rpartition(" = ")[0]]
    new = ("Entities.orders_kept", "Reactions.revenue_book")
    kept["states"] = {name: about for name, about in now["states"].items() if name not in new}
    return {**kept, "incarnation": "i"}


def test_a_checkpoint_from_before_orders_is_converted_with_all_that_it_kept() -> None:
    topology = app.topology(ClickstreamSettings())
    processes = [link.process for link in topology.links]
    now = json.loads(json.dumps(contract_of(topology, [64] * len(processes))))
    kept = before_orders(now)
    assert set(now["states"]) - set(kept["states"]) == {"Entities.orders_kept", "Reactions.revenue_book"}
    assert needs_conversion(kept, processes)
    made = converted(kept, processes, topology)
    assert made.pop("incarnation") == "i"
    assert made == now
    assert not needs_conversion({**now, "incarnation": "i"}, processes)


def test_a_checkpoint_whose_state_is_another_is_not() -> None:
    topology = app.topology(ClickstreamSettings())
    processes = [link.process for link in topology.links]
    kept = before_orders(json.loads(json.dumps(contract_of(topology, [64] * len(processes)))))
    kept["states"]["Entities.carts_cart"]["kind"] = "map"
    with pytest.raises(RescaleError, match="carts_cart"):
        converted(kept, processes, topology)
