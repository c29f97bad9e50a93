"""Small worlds for recipes: trades of shares, requests to a web server, orders step by step."""

from millrace_apps.generators.small.orders import ORDERS
from millrace_apps.generators.small.stocks import STOCKS
from millrace_apps.generators.small.weblogs import WEBLOGS

__all__ = ["ORDERS", "STOCKS", "WEBLOGS"]
