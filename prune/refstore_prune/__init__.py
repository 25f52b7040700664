"""Prune a store that refstore does not own: delete what nothing names any more.

    prune_run.py              one run, from the lock to the report
    prune_layout.py           where a run keeps its files
    state.py                  the runs of a store: one at a time, and what each left
    list_store.py             list the store, by intervals of its keys
    resolve_names.py          make keys of names, in every spelling
    compare.py                compare what is listed with what is named
    checks.py                 stop before anything is marked
    prune_sweep.py            delete what is still unnamed and unchanged
    prune_report.py           what a run found and did
    sources/                  where names come from

A store is listed before the names are read. What is listed, old enough and unnamed is marked; a later run deletes it
if its grace period is over, and it is still unnamed and unchanged.
"""

from __future__ import annotations
