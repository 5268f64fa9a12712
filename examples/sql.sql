-- A store as a table of SQL, from a shell. In the repository, after `make setup`:
--
--   . .venv/bin/activate
--   tar xf tests/goldens/mq-53-upgrade.tar.gz -C /tmp
--   SPARK_CONF_DIR=examples/conf spark-sql \
--       --conf spark.sql.catalogImplementation=in-memory -d path=/tmp/mq-53-upgrade -f examples/sql.sql
--
-- `-d path=` takes your own store. The activated environment is what makes the source known: Spark looks for it in the
-- `python3` that it finds, or in PYSPARK_PYTHON, which spark-sql wants as a full path. The catalog in memory leaves no
-- Derby database behind.

SET spark.sql.session.timeZone=UTC;

CREATE TEMPORARY VIEW log USING dledger OPTIONS (path '${path}');

-- Other tables are options of the same source.
CREATE TEMPORARY VIEW consume_queue USING dledger OPTIONS (path '${path}', table 'consumeQueue');

-- From here on with the names of columns.
SET spark.sql.cli.print.header=true;

-- What the log holds, and where DLedger took over.
SELECT source, count(*) AS rows, min(pos) AS first_pos, max(index) AS last_index, count_if(committed) AS committed
FROM log GROUP BY source ORDER BY source;

-- The topics by messages.
SELECT topic, count(*) AS messages, count(DISTINCT queueId) AS queues, sum(storeSize) AS bytes
FROM log WHERE kind = 'message' GROUP BY topic ORDER BY messages DESC LIMIT 3;

-- One message by its key, as far as its body is text.
SELECT index, topic, queueId, queueOffset, storeTimestamp, decode(body, 'UTF-8') AS body
FROM log WHERE array_contains(split(keys, ' '), 'k-619');

-- Messages of the log that no ConsumeQueue has: consumers never get these. Prepared and rolled back ones belong to none.
SELECT count(*) AS in_no_queue FROM log LEFT ANTI JOIN consume_queue USING (commitLogOffset)
WHERE kind = 'message' AND transaction NOT IN ('prepared', 'rollback');
