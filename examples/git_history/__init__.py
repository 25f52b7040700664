"""Replay a git repository into refstore, let its history expire, and hold what is left against what git itself says.

    python -m examples.git_history ../any-project --days 30

plumbing.py   what git says: commits, dates, first parents, trees, bytes; by its plumbing commands only
replaying.py  git's commits as uploads, deletions, commits, merges and branches
expected.py   which commits are active, worked out from git's answers by the words of docs/retention.md, not by
              refstore's code
collecting.py the reaper, then the offline job, with nobody else at work
comparing.py  what is there against what should be: every file of every active commit, and nothing else

Git is the witness: nothing of what is expected comes from refstore's own retention code.
"""
