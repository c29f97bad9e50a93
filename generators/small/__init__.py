"""Small worlds for recipes: trades of shares, requests to a web server, orders step by step."""

from generators.small.orders import ORDERS
from generators.small.stocks import STOCKS
from generators.small.weblogs import WEBLOGS

__all__ = ["ORDERS", "STOCKS", "WEBLOGS"]
