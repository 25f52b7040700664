"""The purge: find the rows of given ids in onboarded data sets, and rewrite the objects that have them, on an engine
of the offline job.

purge_run.py                  one run over all data sets of a repository
purge_context.py              its options, and what all of its steps do
purge_account.py, outcomes.py  what became of each object, folded into the report
ids_file.py                   read a file of ids
dataset_ids.py                the ids of each data set, as its column has them
purge_ids.py                  a set of ids, as tasks look them up
purge_plan.py                 which objects there are: at the heads, or in every version
row_search.py                 which of them have rows of the ids, or are to be erased
purge_tasks.py, formats/      read and write objects, in tasks of the engine
purge_attempts.py             find, decide, publish, and look again
head_publisher.py             the mode `keep-history`: one commit for each branch
location_publisher.py         the modes `rewrite` and `erase`: a new content for each object (rule 22)
id_index.py, ledger.py        keyed hashes: of the ids that objects have, and of those that were purged
unplanned_contents.py         look for the ids in what the plan leaves out
remaining_places.py           where their rows still are, and when each place goes
object_holders.py             which names objects have
summary_files.py              the summary files of Parquet
purge_cleanup.py              delete what purges left behind, past its days
restore_backups.py            go back to backups
verify.py, verify_*.py        look again, with other code
purge_report.py               what a run did
"""
