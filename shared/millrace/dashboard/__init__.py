"""The dashboard: live pages of all apps in a browser, read from tables and topics, never through Spark.

An app adds panels of its own with a :class:`DashboardPage`; `docs/dashboard.md` shows how.
"""

from millrace.dashboard.page import Action, ActionRefused, DashboardPage, Detail, Field, Panel
from millrace.dashboard.views import (
    Bar,
    Bars,
    Column,
    Edge,
    Graph,
    Node,
    Note,
    Number,
    Numbers,
    Offer,
    Point,
    Points,
    Series,
    Table,
    TimeSeries,
    Titled,
    View,
)

__all__ = [
    "Action",
    "ActionRefused",
    "Bar",
    "Bars",
    "Column",
    "DashboardPage",
    "Detail",
    "Edge",
    "Field",
    "Graph",
    "Node",
    "Note",
    "Number",
    "Numbers",
    "Offer",
    "Panel",
    "Point",
    "Points",
    "Series",
    "Table",
    "TimeSeries",
    "Titled",
    "View",
]
