"""Predictive maintenance: features of machines, risks of their components, remaining life."""
