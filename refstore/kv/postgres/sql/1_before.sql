-- The tables of version 1, in a schema of their own. A user without the right to make one needs one that is there.
DO $$
BEGIN
    IF to_regnamespace('refstore') IS NULL THEN
        CREATE SCHEMA refstore;
    END IF;
END
$$;

-- Partitions and keys are the bytes of their UTF-8, so that they sort as bytes whatever the database's collation.
-- Most rows live for minutes, and some are written often: dead ones are removed when they are a hundredth, and each page
-- keeps room for new versions of its rows, which then change no index.
CREATE TABLE refstore.kv (
    partition bytea NOT NULL,
    key bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (partition, key)
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.05
);

-- Read a page in order of key. Without these settings a partition that is larger than the statistics know, as a new one
-- is, would be read and sorted as a whole for each page.
CREATE FUNCTION refstore.kv_page(bytea, bytea, bytea, bigint) RETURNS TABLE (key bytea, value bytea)
LANGUAGE sql STABLE ROWS 10 SET enable_bitmapscan = off SET enable_seqscan = off AS $$
    SELECT kv.key, kv.value FROM refstore.kv
    WHERE kv.partition = $1 AND kv.key >= $2 AND kv.key < $3 ORDER BY kv.key LIMIT $4
$$;

-- One row: the version of these tables, and the oldest version of the code that may use them.
CREATE TABLE refstore.kv_schema (version integer NOT NULL, oldest integer NOT NULL);
INSERT INTO refstore.kv_schema VALUES (1, 1);
