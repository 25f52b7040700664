"""Incremental runs: a run builds on the results of the run before it (decision 0095).

baseline.py          the records that a run builds on, whether it still can, and what changed since
baseline_files.py    find, write and remove them
baseline_keys.py     the recorded keys of one bucket
"""
