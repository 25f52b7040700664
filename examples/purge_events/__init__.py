"""Purge the rows of a thousand people from a gigabyte of events, check every row, and take it back.

    python -m examples.purge_events --size 1_024_000_000

events.py     the data set: events by day and tenant, made from a seed, so that every file can be made again
__main__.py   the command: upload, purge, verify, compare, revert, compare

What is expected is computed from the seed by plain pyarrow. No expected result comes from refstore's purge code.
"""
