"""Reads of a cluster without Spark, as its data source plans and reads them."""

from __future__ import annotations

from typing import Any

from pyspark_dledger.cluster.options import parse_cluster_options
from pyspark_dledger.cluster.routes import Queue
from pyspark_dledger.cluster.tail import ClusterTail
from pyspark_dledger.spark.cluster.cluster_readers import ClusterReader, ClusterStreamReader
from pyspark_dledger.spark.schema import cluster_schema

Key = tuple[str, str, int, int]


def batch_reader(address: str, columns: tuple[str, ...] = (), **options: Any) -> ClusterReader:
    schema = cluster_schema()
    if columns:
        schema = type(schema)([schema[name] for name in columns])
    return ClusterReader(parse_cluster_options({"nameServer": address, **options}, is_stream=False), schema)


def stream_reader(address: str, **options: Any) -> ClusterStreamReader:
    parsed = parse_cluster_options({"nameServer": address, **options}, is_stream=True)
    return ClusterStreamReader(parsed, cluster_schema())


def tail_of(reader: ClusterStreamReader) -> ClusterTail:
    assert isinstance(reader.tail, ClusterTail)
    return reader.tail


def rows(reader: Any, parts: Any = None) -> list[dict[str, Any]]:
    """The rows of all partitions, or of the given ones."""
    planned = reader.partitions() if parts is None else parts
    return [row for part in planned for batch in reader.read(part) for row in batch.to_pylist()]


def keys(found: list[dict[str, Any]]) -> list[Key]:
    """Topic, broker, queue and offset of each row, in the order of the queues; that of the rows of a queue is kept."""
    got = [(row["topic"], row["broker"], row["queueId"], row["queueOffset"]) for row in found]
    return sorted(got, key=lambda key: key[:3])


def keys_of(broker: str, topic: str, queue: int, offsets: range) -> list[Key]:
    return [(topic, broker, queue, offset) for offset in offsets]


def queue_of(queue_id: int, topic: str = "Orders", broker: str = "b") -> Queue:
    return Queue(topic, broker, queue_id)


class Stream:
    """A stream without Spark. Each micro-batch is planned and read twice, by different readers."""

    def __init__(self, address: str, **options: Any) -> None:
        self._options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "500", **options}
        self._reader, self._again = (stream_reader(address, **self._options) for _ in range(2))
        self._at: dict[str, Any] = self._reader.initialOffset()
        self.rows: list[dict[str, Any]] = []

    def trigger(self) -> int:
        """Reads a micro-batch. Returns its number of rows."""
        end = self._reader.latestOffset(self._at, self._reader.getDefaultReadLimit())
        found = rows(self._reader, self._reader.partitions(self._at, end))
        again = rows(self._again, self._again.partitions(self._at, end))
        assert by_offset(found) == by_offset(again)
        self.rows += found
        self._at = end
        return len(found)

    def finish(self) -> list[dict[str, Any]]:
        """Reads what is left. Returns the rows of all micro-batches."""
        while self.trigger():
            pass
        self._reader.stop()
        self._again.stop()
        return self.rows


def by_offset(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: (row["broker"], row["queueId"], row["queueOffset"]))
