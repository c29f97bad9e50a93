"""Questions answered over HTTP from what a query has committed, and from what it is about to see."""
