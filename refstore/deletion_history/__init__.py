"""Read the records of deletions: by the reaper (its journal), by sweeps of the offline job, and by the clearing of
deleted repositories.

    journal_format.py   the lines of the journal, and the search for an address in it
    deletion_index.py   the index of all deletions: sorted Parquet files
    deletion_search.py  the deletions and marks of an address or a path: in the index, and in what it does not have yet
    naming_commits.py   the commits and branches that name an address or a path
    causes.py           who wrote an entry of the journal, and by which rule the object went
    address_meaning.py  what keeps an object, or will happen to it, as a text
    explain.py          the answer of `refstore why`, from all of these

    journal_writer.py   write the journal: for the reaper, and for what the offline job's own process deletes

All other modules only read. The offline job writes the index (`offline_gc/refstore_gc/deletion_index_writer.py`).
"""
