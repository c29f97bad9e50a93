"""Evaluations of the iot app on published data; the data are arguments, never part of the app."""
