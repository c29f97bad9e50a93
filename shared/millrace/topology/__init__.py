"""Topologies: apps as inputs, links and outputs, without an engine."""

from __future__ import annotations

from millrace.topology.definition import Input, KeyedOutputs, Link, Read, Taken, Topology, read
from millrace.topology.keys import FirstOf, KeyingError, RecordKey
from millrace.topology.sinks import Upsert

__all__ = [
    "FirstOf",
    "Input",
    "KeyedOutputs",
    "KeyingError",
    "Link",
    "Read",
    "RecordKey",
    "Taken",
    "Topology",
    "Upsert",
    "read",
]
