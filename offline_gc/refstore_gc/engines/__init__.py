"""The engines that the offline work runs on: `local` (processes of this machine) or `spark`.

    base.py              what an engine does for a run: `Engine`
    choice.py            which engine a run gets: `Engines`
    local.py             this process and its workers, in bounded memory, and the work that these share
    worker_processes.py  the workers, in which native code may crash
    spill.py             batches that wait on disk where memory is bounded
    spark.py             Spark
    spark_session.py     Spark's session, its settings, and its Java

What is done to batches and objects is the same on both: functions that are given to an engine. `pyspark` is imported in
`spark.py` and `spark_session.py` only, and only when a run gets Spark.
"""
