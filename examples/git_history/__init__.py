"""Replay a git repository into refstore, let its history expire, and compare what is left with git itself.

    python -m examples.git_history ../any-project --days 30

plumbing.py   git's commits, dates, first parents, trees and bytes, read by its plumbing commands only
replaying.py  git's commits as uploads, deletions, commits, merges and branches
expected.py   the active commits, computed from git's data by the rules of docs/retention.md, not by refstore's code
collecting.py the reaper, then the offline job, without other clients
comparing.py  the comparison: every file of every active commit exists, and no other object does

Git is the reference: no expected result comes from refstore's own retention code.
"""
