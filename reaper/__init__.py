"""The reaper: deletes, online, what was staged and never committed.

    processing.py  publish what operations left, then markers -> released references (rules 3 and 7)
    deletion.py    empty lists and expired addresses, when due -> `deleting` -> blob -> key (rule 8)
    scrub.py       what crashes left behind (rule 9)
    cycle.py       one bounded pass over a repository, under leases, the breaker and the rate limit
    daemon.py      the loop: back-off, signals, metrics
    journal.py     what was deleted, when, and why: append-only, in the repository's namespace
    breaker.py     stops hard deletion when it is more than anybody expected
    leases.py      how reapers on several machines share the work

Any number of reapers may run; leases only keep them from doing the same work twice. Safety rests on the protocol alone.
"""
