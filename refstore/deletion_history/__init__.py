"""Read the records of deletions: by the reaper (its journal), by sweeps of the offline job, and by the clearing of
deleted repositories.

    deletion_journal.py the journal: its lines, who writes them, and the search for an address in it
    deletion_index.py   the index of all deletions: sorted Parquet files
    deletion_search.py  the deletions and marks of an address or a path: in the index, and in what it does not have yet
    naming_commits.py   the commits and branches that name an address or a path
    causes.py           who wrote an entry of the journal, and by which rule the object went
    explain.py          the answer of `refstore why`, from all of these

Only `JournalWriter` writes: for the reaper, and for what the offline job's own process deletes. The offline job writes
the index (`offline_gc/refstore_gc/deletion_index_writer.py`).
"""
