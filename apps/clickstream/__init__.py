"""Clickstream: sessions, funnels, offers at the right moment and top products of a web shop."""
