"""The use cases, a room each: every protocol step in its order, to be read in one function.

    refs.py       ref expressions: main, main~2, main@, commit ids and their prefixes, tags
    reading.py    resolve, list, get: head + sealed + current token, re-read until the branch stood still (rule 12)
    placing.py    put entries under the current token, and follow it when it moves (rules 1, 2, 6)
    uploading.py  upload, stage, issue and link (rules 1, 10, 11)
    copying.py    copy and move (rules 4, 5, 13)
    removing.py   delete, and reset of paths and prefixes (rules 2, 6)
    committing.py seal, write, advance (rule 3); merge, revert and cherry-pick advance the same way
    branching.py  create, reset and delete branches (rule 3)
    restoring.py  take back what lost its last name (rules 5, 8, 17)
    trash.py      list what can be taken back
    retaining.py  the retention rules, and the reading of what they are applied to
    rule_filters.py  what the filters of rules are about here: a path, or `branch/path`
    rule_review.py   what of rules may not be meant, and how much expires by them tonight
    expiring.py   reset staged objects that a path rule lets expire (rule 15)
    committed_names.py  whether a commit names an address that has no reference
    viewing.py    who names an address, and in which state (the seed's proposal 3, as a view)

Flows take a `Context` first. They are called through `refstore.repository`, which puts each under its deadline.
"""
