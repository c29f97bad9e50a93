"""Operations of all apps: one sender, one control topic, rules by command, reports as files.

:mod:`~millrace.operations.sending` sends what operators ask of a running app,
:mod:`~millrace.operations.roster` says who they are and :mod:`~millrace.operations.acting` who acts,
:mod:`~millrace.operations.control_topic` reads and writes the rules of an app,
:mod:`~millrace.operations.app_rules` is what an app says of its rules, and
:mod:`~millrace.operations.report` writes what was found. The commands are in :mod:`millrace.cli.rules`.
"""
