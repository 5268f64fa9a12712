"""The stream reader of a live group: options `group` and `peers` instead of a path."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_dledger.errors import OptionError
from pyspark_dledger.log.options import ReadOptions
from pyspark_dledger.log.tail.tail import Tail
from pyspark_dledger.spark.group_address import GroupAddress, group_address
from pyspark_dledger.spark.stream.group_partition import GroupPartition, read_group_partition
from pyspark_dledger.spark.stream.group_tail import GroupTail
from pyspark_dledger.spark.stream.stream_reader import StreamReader


class GroupStreamReader(StreamReader):
    """Reads committed entries of a live group from any member. Tasks connect to members themselves.

    `options` are those of a stream, checked by `check_group_options`.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.address = _address(options)

    def open_tail(self) -> Tail:
        """See `StreamReader.open_tail`. The tail connects at its first call."""
        return GroupTail(self.address, self.options, self.columns)

    def read_part(self, part: GroupPartition) -> Iterator[pa.RecordBatch]:
        """See `PartReader.read_part`."""
        return read_group_partition(part)


def _address(options: ReadOptions) -> GroupAddress:
    return group_address(options.group, options.peers, options.tls_cert, options.tls_key, options.tls_ca)


def check_group_options(options: ReadOptions) -> None:
    """Raises OptionError for options that do not apply to a live group. Connects to nothing."""
    _address(options)
    if options.isolation_level == "read_uncommitted":
        raise OptionError(
            "isolationLevel=read_uncommitted: a live group gives committed entries only: leave it out, or tail the "
            "store of a member by its path"
        )
