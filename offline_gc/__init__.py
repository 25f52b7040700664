"""The offline job: deletes what only expired commits name, and what the online path never knew of (rules 13 and 14 of `docs/protocol.md`).

    run.py         the flows: mark, sweep, run, simulate, each in one function
    online.py      rules that act on branches: what was staged too long ago, the latest view
    deciding.py    what the rules come to; clocks and ages
    listing.py     what the store holds, listed by the executors
    kept.py        what the KV names
    committed.py   what commits name, each distinct range read once
    marking.py     what is listed and not named: packets of keys in, counts out
    rechecking.py  the rules of today, before a sweep
    sweeping.py    deleting, or tagging, on the executors
    leftovers.py   deleted repositories
    addresses.py, packets.py, places.py    how addresses travel, and where files lie
    breaker.py, summary.py, report.py, lifecycle.py, steps.py, session.py

`pyspark` is imported in this package only, and in it only where something runs in Spark: what reads reports does without it. What the
online path deletes does not need this job.
"""
