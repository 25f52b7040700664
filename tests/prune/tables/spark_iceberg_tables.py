"""Writes Iceberg tables by Spark, and reads every snapshot of them, in a Spark of its own: Iceberg's own is not out for
that of the other tests.

    python spark_iceberg_tables.py JARS WAREHOUSE write|read
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

TABLES = {"second": 2, "third": 3, "expired": 2}
"""The version of the format of each."""
MERGE_ON_READ = ", ".join(f"'write.{kind}.mode'='merge-on-read'" for kind in ("delete", "update", "merge"))


def start(jars: str, warehouse: str) -> SparkSession:
    options = {
        "spark.jars": jars,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": warehouse,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
    }
    builder = SparkSession.builder.master("local[2]")
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


STATEMENTS = """
create table lake.shop.NAME (id bigint, day string) using iceberg partitioned by (day) tblproperties (PROPERTIES)
insert into lake.shop.NAME select id, id % 2 || ' x:/' from range(20)
insert into lake.shop.NAME select id + 100, id % 2 || ' x:/' from range(20)
alter table lake.shop.NAME create tag begun
alter table lake.shop.NAME create branch audit
delete from lake.shop.NAME where id = 7
update lake.shop.NAME set id = id + 1000 where id = 105
insert into lake.shop.NAME.branch_audit select 9999, 'b'
call lake.system.rewrite_data_files(table => 'shop.NAME', options => map('rewrite-all', 'true'))
call lake.system.compute_table_stats(table => 'shop.NAME')
insert into lake.shop.NAME select 77777, 'z'
"""
EXPIRE = (
    "call lake.system.expire_snapshots(table => 'shop.expired', older_than => timestamp '2100-01-01', retain_last => 2)"
)


def write(spark: SparkSession, name: str) -> None:
    properties = f"'format-version'='{TABLES[name]}', 'write.metadata.compression-codec'='gzip', {MERGE_ON_READ}"
    for statement in STATEMENTS.strip().splitlines():
        spark.sql(statement.replace("NAME", name).replace("PROPERTIES", properties))
    if name == "expired":
        spark.sql(EXPIRE)


def read(spark: SparkSession, name: str) -> dict[str, Any]:
    table = f"lake.shop.{name}"
    ids = [row.snapshot_id for row in spark.table(f"{table}.snapshots").collect()]
    rows = {each: spark.read.option("snapshot-id", each).table(table).collect() for each in ids}
    return {str(each): sorted([row.id, row.day] for row in found) for each, found in rows.items()}


def main() -> None:
    spark = start(*sys.argv[1:3])
    for name in TABLES:
        if sys.argv[3] == "write":
            write(spark, name)
    print("rows", json.dumps({name: read(spark, name) for name in TABLES}), flush=True)


if __name__ == "__main__":
    main()
