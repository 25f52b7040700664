"""Incremental runs: what makes a run go on from the run before it (decisions 0095 and 0097).

    baseline.py        what a run records for the next one, and whether a run can go on from it
    known_keys.py      the recorded keys of one bucket
    join.py            the anti-join of what changed
    local_executor.py  small steps, done in the driver without Spark

Only `run.py` imports this package; the modules of a complete run do not know it (`.importlinter`).
"""
