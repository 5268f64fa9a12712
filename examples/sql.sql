-- Query a store with SQL, from a shell. In the repository, after `make setup`:
--
--   . .venv/bin/activate
--   tar xf tests/goldens/mq-53-upgrade.tar.gz -C /tmp
--   SPARK_CONF_DIR=examples/conf spark-sql \
--       --conf spark.sql.catalogImplementation=in-memory -d path=/tmp/mq-53-upgrade -f examples/sql.sql
--
-- Set `-d path=` to your own store. Activate the environment, so that Spark finds a `python3` that has this package.
-- Or set PYSPARK_PYTHON to the full path of one. With the catalog in memory, Spark creates no Derby database.

SET spark.sql.session.timeZone=UTC;

CREATE TEMPORARY VIEW log USING dledger OPTIONS (path '${path}');

-- The option `table` selects another table of the store.
CREATE TEMPORARY VIEW consume_queue USING dledger OPTIONS (path '${path}', table 'consumeQueue');

-- Print column names from here on.
SET spark.sql.cli.print.header=true;

-- Rows by source: the old CommitLog and DLedger.
SELECT source, count(*) AS rows, min(pos) AS first_pos, max(index) AS last_index, count_if(committed) AS committed
FROM log GROUP BY source ORDER BY source;

-- The topics with the most messages.
SELECT topic, count(*) AS messages, count(DISTINCT queueId) AS queues, sum(storeSize) AS bytes
FROM log WHERE kind = 'message' GROUP BY topic ORDER BY messages DESC LIMIT 3;

-- One message by its key.
SELECT index, topic, queueId, queueOffset, storeTimestamp, decode(body, 'UTF-8') AS body
FROM log WHERE array_contains(split(keys, ' '), 'k-619');

-- Messages that are in no ConsumeQueue: no consumer gets them. Prepared and rolled back messages belong to no queue.
SELECT count(*) AS in_no_queue FROM log LEFT ANTI JOIN consume_queue USING (commitLogOffset)
WHERE kind = 'message' AND transaction NOT IN ('prepared', 'rollback');
