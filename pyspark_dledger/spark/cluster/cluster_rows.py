"""Rows of a DataFrame as messages for queues of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_dledger.cluster.producer import MAX_BATCH_MESSAGES, Batch, Producer
from pyspark_dledger.cluster.routes import Queue
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.columns import PROPERTIES
from pyspark_dledger.format.encode.encoded import Bodies
from pyspark_dledger.format.layout import PROPERTY_TIMER_DELIVER, PROPERTY_TRANSACTION
from pyspark_dledger.raft.client.results import Topics
from pyspark_dledger.spark.cluster.encoded_messages import EncodedMessages
from pyspark_dledger.spark.sink.row_format import DELIVER_AT, TOPIC, RowFormat

# The bits of a transaction, which rows of a cluster do not have, in messages that are not sent yet. The encoder leaves
# the topic of such a message although it is delayed: a broker changes it.
_ALONE, _PINNED = 4, 8
NO_HOST = bytes(8)
"""The broker writes its own host, and that of the connection."""

_PREPARED = f"(?i:^|\2){PROPERTY_TRANSACTION}\1(?i:true)(?:\2|$)"


class ClusterRows:
    """Makes messages of the rows of one task. The number of a queue while they are encoded is that in `queues`."""

    def __init__(self, rows: RowFormat, producer: Producer, max_body: int) -> None:
        self._rows = rows
        self._producer = producer
        self._max_body = max_body
        self._queues: dict[str, tuple[Queue, ...]] = {}

    def topics(self, names: Sequence[str], queue_nums: int) -> Topics:
        """The number of queues that take messages of each topic. Raises ClusterError for a topic that is missing."""
        return Topics({name: len(self._queues_of(name)) for name in names}, NO_HOST)

    def _queues_of(self, topic: str) -> tuple[Queue, ...]:
        if topic not in self._queues:
            self._queues[topic] = self._producer.queues(topic)
        return self._queues[topic]

    def puts(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """See `RowFormat.puts`. Delayed messages, and those with a queueId, are marked."""
        found = self._rows.puts(batch, first_row)
        columns = dict(zip(found.schema.names, found.columns, strict=True))
        marks = np.zeros(batch.num_rows, np.int32)
        if "delayLevel" in columns:
            marks[_is_set(columns["delayLevel"])] = _ALONE
        if DELIVER_AT in columns:
            times = columns.pop(DELIVER_AT)
            is_timed = np.asarray(times.is_valid())
            if (is_timed & (marks > 0)).any():
                row = first_row + int(np.argmax(is_timed & (marks > 0)))
                raise OptionError(f"row {row}: expected a delayLevel or deliverAt, found both: leave one of them null")
            marks[is_timed] = _ALONE
            columns["properties"] = _with_times(columns.get("properties"), times)
        if "queueId" in columns:
            marks[np.asarray(columns["queueId"].is_valid())] += _PINNED
            columns["queueId"] = self._numbers(columns[TOPIC], columns["queueId"], first_row)
        columns["transaction"] = pa.array(marks)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _numbers(self, topics: pa.Array, ids: pa.Array, first_row: int) -> pa.Array:
        """The numbers of the queues with these ids. Of several brokers that have one, its id modulo them decides."""
        found = np.zeros(len(ids), np.int32)
        given, is_given = np.asarray(ids.fill_null(0)), np.asarray(ids.is_valid())
        for topic in pc.unique(topics).to_pylist():
            of_ids: dict[int, list[int]] = {}
            for number, queue in enumerate(self._queues_of(topic)):
                of_ids.setdefault(queue.id, []).append(number)
            for row in np.flatnonzero(np.asarray(pc.equal(topics, topic)) & is_given):
                numbers = of_ids.get(int(given[row]))
                if numbers is None:
                    raise OptionError(
                        f"row {first_row + row}: expected a queueId from 0 to {max(of_ids)} of topic {topic}, found "
                        f"{given[row]}: add queues to the topic, or leave queueId null"
                    )
                found[row] = numbers[given[row] % len(numbers)]
        return pa.array(found, mask=~is_given)

    def batches(self, bodies: Bodies, first_row: int, max_bytes: int) -> Iterator[Batch]:
        """Encoded messages in batches of at most that size, or one message. Raises OptionError for the first row.

        A batch has messages of one queue in their order. Batches are in the order of their first messages.
        """
        found = EncodedMessages(bodies)
        is_alone, is_pinned = found.fields["sysFlag"] & _ALONE > 0, found.fields["sysFlag"] & _PINNED > 0
        self._check(found, first_row)
        queues = [self._queues[topic] for topic in found.topics]
        for row, count, data in found.batches(is_pinned, is_alone, MAX_BATCH_MESSAGES, max_bytes):
            _, number, _, _, born, _ = found.fields[row].item()
            queue = queues[found.topic[row]][number]
            yield Batch(queue, data, count, born, 0, bool(is_alone[row]), bool(is_pinned[row]))

    def _check(self, found: EncodedMessages, first_row: int) -> None:
        sizes = found.fields["bodySize"]
        if (sizes > self._max_body).any():
            first = int(np.argmax(sizes > self._max_body))
            raise OptionError(
                f"row {first_row + first}: expected a body of at most {self._max_body} bytes (maxMessageSize), found "
                f"{sizes[first]}: shorten or compress it"
            )
        # Sent alone, as every message may be, it would wait for the end of a transaction.
        row = found.first_with(_PREPARED)
        if row is not None:
            raise OptionError(
                f"row {first_row + row}: expected no property {PROPERTY_TRANSACTION} of true, found one: remove it"
            )


def _is_set(levels: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = np.asarray(levels.fill_null(0)) != 0
    return found


def _with_times(properties: pa.Array | None, times: pa.Array) -> pa.Array:
    """Properties with the time of delivery. Texts are bytes, so that the encoder finds invalid UTF-8."""
    kind = pa.map_(pa.binary(), pa.binary())
    before = [None] * len(times) if properties is None else properties.cast(kind).to_pylist()
    found = [
        pairs if time is None else [*(pairs or ()), (PROPERTY_TIMER_DELIVER.encode(), b"%d" % time)]
        for pairs, time in zip(before, times.to_pylist(), strict=True)
    ]
    return pa.array(found, kind).cast(PROPERTIES, safe=False)
