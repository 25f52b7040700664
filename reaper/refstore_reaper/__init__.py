"""The reaper: deletes, online, what was staged and never committed.

    daemon.py             the loop over all repositories: back-off, heartbeats, metrics
    reaper_pass.py        one bounded pass over a repository, under leases, the breaker and the throttle
    reference_release.py  publish missing markers, then markers -> released references (rules 3 and 7)
    deletion.py           empty lists and expired addresses, when due -> `deleting` -> blob -> key (rule 8)
    batch_pipeline.py     the store deletes one batch while the reaper prepares the next in the KV
    blob_deletion.py      the store's part of a batch, in a thread
    scrub.py              remove the remains of crashed operations (rule 9)
    scrub_schedule.py     which shards are to be scrubbed now, each once per interval
    breaker.py            stop hard deletion when more is due than expected
    leases.py             share the work between reapers on several machines
    dry_run.py            the same passes over read-only stores

Any number of reapers may run. Leases only keep them from doing the same work twice; safety depends on the protocol
alone.
"""
