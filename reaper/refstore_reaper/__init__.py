"""The reaper: deletes, online, what was staged and never committed.

    daemon.py             the loop over all repositories: back-off, heartbeats, metrics
    cycle.py              one bounded pass over a repository, under leases, the breaker and the throttle
    reference_release.py  publish what operations left, then markers -> released references (rules 3 and 7)
    deletion.py           empty lists and expired addresses, when due -> `deleting` -> blob -> key (rule 8)
    batch_pipeline.py     the store deletes one batch while the KV is worked on for the next
    blob_deletion.py      the store's part of a batch, in a thread; for local files in a process (delete_worker.py)
    scrub.py              what crashes left behind (rule 9)
    journal_writer.py     what was deleted, when, and why: append-only, in the repository's namespace
    breaker.py            stops hard deletion when it is more than anybody expected
    leases.py             how reapers on several machines share the work
    dry_run.py            the same passes over stores that are only read

Any number of reapers may run; leases only keep them from doing the same work twice. Safety rests on the protocol alone.
"""
