"""The offline job: it deletes what only expired commits name, and what the online path never knew of (rules 13 and 14
of `docs/protocol.md`).

    mark.py                   mark what nobody needs: rule 13 in one function; and simulate it
    sweep.py                  delete, or tag, what a mark holds, by the rules of today: rule 14
    gc_run.py                 the nightly job: all of these
    run_context.py            what the functions of one run share, and its options
    mark_plan.py              what the rules come to, also on branches; clocks and ages
    engines/                  what it runs on: this machine, or Spark
    list_objects.py           list the store
    live_in_commits.py        what commits name, each distinct range read once
    anti_join.py              what the KV names; compare what is listed with what is named
    bucket_join.py            the same in one bucket, as a task of the engine
    garbage.py                decide what is garbage, and write it to the mark
    nothing_to_delete.py      expired commits that lose nothing
    incremental/              what makes a run go on from the one before
    sweep_tasks.py            delete or tag, unit by unit
    purged_objects.py         delete the contents of purged objects that nothing names
    deleted_repositories.py   what deleted repositories left
    address_codec.py, address_batches.py, run_layout.py    how addresses travel, and where files lie
    summary_totals.py, run_summary.py, run_progress.py, gc_figures.py    what a run reports
    deletion_index_writer.py, bucket_lifecycle.py, private_folder.py

`pyspark` is imported by its engine only. The online path's own deletions do not need this job.
"""
