"""The reaper: deletes, online, what was staged and never committed.

    daemon.py             the loop over all repositories: back-off, heartbeats, metrics
    reaper_pass.py        one bounded pass over a repository, under leases, the breaker and the throttle
    reference_release.py  publish missing markers, then markers -> released references (rules 3 and 7)
    deletion.py           empty lists and expired addresses, when due -> `deleting` -> blob -> key (rule 8)
    scrub.py              remove the remains of crashed operations (rule 9)
    breaker.py            stop hard deletion when more is due than expected
    leases.py             share the work between reapers on several machines
    dry_run.py            the same passes over read-only stores

Any number of reapers may run. Leases only keep them from doing the same work twice; safety depends on the protocol
alone.
"""
