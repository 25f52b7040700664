"""Incremental runs: a run builds on the results of the run before it (decision 0095).

    baseline.py      the records of a run for the next one, and the check whether a run can use them
    known_keys.py    the recorded keys of one bucket
    join.py          the anti-join of the changes

Only `run.py` imports this package; the modules of a complete run do not know it (`.importlinter`).
"""
