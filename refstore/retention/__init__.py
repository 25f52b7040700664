"""Retention: rules, and what follows from them. Pure functions over plain data; `refstore/flows/retaining.py` does the reading.

    located.py     JSON whose errors say line and column
    globs.py       globs over names, and which is the more specific
    rules.py       the document
    history.py     the commits of a repository as arrays: what a million of them take is bounded
    active.py      which commits are active, until when and why
    paths.py       what path rules and legal holds change for single paths
    explaining.py  the same told for one commit, and summed up for each branch

Nothing here deletes. Where something cannot be known (a missing commit, a loop in the history) it raises: a job that went on would
delete by guess.
"""

from __future__ import annotations
