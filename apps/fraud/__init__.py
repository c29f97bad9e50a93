"""Fraud: decides on card transactions as they come, and says why."""
