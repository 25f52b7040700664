"""The operations on a repository, one module each; every step of the protocol stands in its order in one function.

    refs.py       ref expressions: main, main~2, main@, commit ids and their prefixes, tags
    read.py       resolve, list, get: head + sealed + current token, re-read until the branch stood still (rule 12)
    stage_entries.py  put entries under the current token, and follow it when it moves (rules 1, 2, 6)
    upload.py     upload, stage, issue and link (rules 1, 10, 11)
    upload_bodies.py  what the body of an upload may be; write or copy the blobs of a batch
    copy.py       copy and move (rules 4, 5, 13)
    change_metadata.py  change what an entry says of its object (rule 20)
    delete.py     delete, and reset of paths and prefixes (rules 2, 6)
    commit.py     seal, write, advance (rule 3); merge, revert and cherry-pick advance the same way
    branch.py     create, reset and delete branches (rule 3)
    tag.py        create, read and delete tags
    content_comparison.py  tell whether entries are equal, by the content that their readers get now (rule 22)
    import_objects.py  name foreign objects in one commit (rule 16)
    log_and_diff.py     the history of a ref, and what differs between two refs
    restore.py    take back addresses that lost their last reference (rules 5, 8, 17)
    trash.py      list the addresses that can be taken back
    reference_lookup.py    read the names that addresses have, and the entries that are left of them
    referenced_entries.py  find all that is staged or can be taken back, once for each name (rule 22)
    rules_in_force.py   read the retention rules that are in force
    rules_document.py   set the retention rules, and read the history that they apply to
    rule_filters.py     decide whether a rule's filter means a path, or `branch/path`
    rule_review.py      warn of rules that may not be meant, and count what expires by them tonight
    expire_staged_entries.py    reset staged objects that a path rule lets expire (rule 15)
    expire_head.py      remove, by a commit, what an `all` rule lets expire of a branch's head
    unmark.py           make marked commits active again
    hidden_commits.py   refuse to read commits that are hidden until they are deleted
    deleted_names.py    tell until when a deleted repository keeps its name
    committed_names.py  find out whether a commit names an address that has no reference
    address_info.py     which references name an address, and in which state (lakeFS's design 004)
    purge_roles.py      what an address is to a purged object: its identity, content, backup, ... (rule 22)

Operations take a `Context` first. `refstore.repository` calls them, each under its deadline.
"""
