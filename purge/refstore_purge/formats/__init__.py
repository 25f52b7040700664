"""One module for each file format that the purge reads and writes; `registry` has their names.

Each has what `base.FormatModule` says. They know nothing of Spark, the KV or object stores.
"""
