"""What is known of deletions: by the reaper (its journal), by sweeps of the offline job, and by the clearing of deleted
repositories.

    journal_format.py   the lines of the journal, and how an address is found in it
    index_format.py     the index over all deletions: sorted segments in which an address is found by one request each
    sweep_records.py    what a run of the offline job wrote of an address: that it is marked, and what became of it
    naming_commits.py   which commits and branches name an address or a path
    explain.py          the answer of `refstore why`: all of this together

Nothing here writes. The reaper writes the journal (`reaper/refstore_reaper/journal_writer.py`), the offline job the
index (`offline_gc/refstore_gc/deletion_index_writer.py`).
"""
