"""The apps of Millrace, their generators, benchmarks and recipes under one name, as they are installed.

In the repository the folders stand at its top level (``apps/fraud`` is ``millrace_apps.fraud``,
``generators`` is ``millrace_apps.generators``); here are links to them, so that names are the same in a
checkout and installed.
"""
