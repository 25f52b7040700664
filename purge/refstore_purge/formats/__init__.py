"""One module for each file format that the purge reads and writes: `parquet`, `orc`, `json_lines` and `csv`.

Each has the two functions of `base.Format`. They know nothing of Spark, the KV or object stores.
"""
