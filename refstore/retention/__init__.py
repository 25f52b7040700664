"""Retention: which commits and paths the rules let expire, by pure functions over plain data.

    globs.py             globs over names, and which is the more specific
    rules.py             the rules document
    typed_rules.py       the same as applications write it
    commit_arrays.py     the commits of a repository as arrays, so that a million of them take bounded memory
    active_commits.py    which commits are active, until when and why
    path_rules.py        what path rules and legal holds change for single paths
    rule_explanation.py  the reasons for one commit, and sums for each branch

`refstore/operations/rules_document.py` reads rules and commits from the KV. Nothing here deletes. Where something
cannot be known (a missing commit, a loop in the history) the functions raise: a job that went on would delete by guess.
"""

from __future__ import annotations
