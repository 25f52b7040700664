"""The online hard-delete protocol as an executable specification. Each rule is the docstring of the class or function
in which it acts, from the line `Rule N: ...` on; `scripts/protocol_page.py` writes them into `docs/protocol.md`.

    store.py       the single-key primitives, the records, and what the retry layer does when a reply is lost
    staging.py     flows on entries: upload, link, restore, delete, reset of paths
    copying.py     copy, and move
    creating.py    uploads and links that may only go where nothing is
    replacing.py   uploads, links and deletions that may only take the place of what their caller read
    multipart.py   multipart uploads: begin, parts, complete, abort; what is left of them
    branching.py   flows that end in the branch record: commit, merge, revert, reset, create, delete; repository
                   deletion
    background.py  reaper, hard deletion, scrubber
    offline.py     the offline gc of committed history: marking, unmark, sweep; tags
    incremental.py a run of it that goes on from what the run before recorded
    locations.py   rows that leave every version: where content lies after a purge
    losses.py      a KV, or a shard of it, that loses writes: positions, witnesses, settling
    manifest.py    what the object store knows of commits, names and witnessed entries
    calls.py       calls as data
    pruning.py     a store that refstore does not own, its writers, and a run that prunes it
    invariants.py  what must hold in every state, and at the end
    explorer.py    every interleaving, crash and lost reply
    scenarios.txt  the scenarios, as plain data: start, the calls of each process, who may crash, who may lose replies
    scenarios.py   reads them
    starts.py      the stores that they start from
    mutants.py     the table of rules dropped one at a time, each with its scenario, and the seed's proposal 4 as
                   written; mutants_staging.py and its neighbours have what each one drops
    cli.py         `python docs/protocol_model.py`

An operation is a generator that yields primitives, one atomic step each, and is a deterministic function of what it
reads. A scenario names operations by method and arguments only, so the same scenarios can drive other implementations.
"""
