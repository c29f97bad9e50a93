"""Parts: state logic that any process can hold.

A part is a struct: it is kept in ``value_state(Part)`` or in a field of a struct of one's own, and knows
neither engine nor context. Something is added, what nobody can ask for any more is pruned, what is asked
for is a value. Windows, joins and operators stand on parts, and so do the apps. ``docs/parts.md`` says
which is for what.
"""
