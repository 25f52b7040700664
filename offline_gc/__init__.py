"""The offline job: reserved, nothing is here yet.

What will be: the deletion of expired commits' objects and of orphans that the KV never knew, in the order of rules 13 and 14 of
`docs/protocol.md`: mark, wait, list, read, sweep, report. `pyspark` is imported in this package only. What the online path
deletes does not need it.
"""
