"""Failures foreseen: what machines have been like, the risk of their components, and their remaining life."""
