"""The stream reader of a live group, `group` and `peers` instead of a path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_dledger.errors import OptionError
from pyspark_dledger.log.options import ReadOptions, read_paths
from pyspark_dledger.log.tail.tail import Tail
from pyspark_dledger.spark.group_address import group_address
from pyspark_dledger.spark.stream.group_read import GroupPartition, read_group_partition
from pyspark_dledger.spark.stream.group_tail import GroupTail
from pyspark_dledger.spark.stream.stream_reader import StreamReader

# What says where a store is, or what of it may be read: of a group only committed entries are, of any member.
_OF_A_PATH = ("selfId", "dataDirs", "replicas", "groupSize", "committedBound")


class GroupStreamReader(StreamReader):
    """Reads committed entries of a live group from whichever of its members answers.

    `options` are those of a stream, checked by `check_group_options`. Every task connects itself: nothing of it passes
    through the driver.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self.address = group_address(options.group, options.peers, options.tls_cert, options.tls_key, options.tls_ca)

    def open_tail(self) -> Tail:
        """See `StreamReader.open_tail`. Nobody is connected to before the first call of the tail."""
        return GroupTail(self.address, self.options, self.columns)

    def read_part(self, part: GroupPartition) -> Iterator[pa.RecordBatch]:
        """See `StreamReader.read_part`."""
        return read_group_partition(part)


def check_group_options(options: ReadOptions, given: Mapping[str, Any]) -> None:
    """Refuse what a stream over a group cannot honour; `given` are the options as the user wrote them.

    Raises OptionError. Connects to nobody.
    """
    group_address(options.group, options.peers, options.tls_cert, options.tls_key, options.tls_ca)
    names = {name.lower() for name, value in given.items() if value is not None}
    if read_paths(given):
        raise OptionError("a path and options group and peers are both given: load() a group without a path")
    for name in _OF_A_PATH:
        if name.lower() in names:
            raise OptionError(f"option {name} is about a store on disk, a live group has no use for it: leave it out")
    if options.isolation_level == "read_uncommitted":
        raise OptionError(
            "isolationLevel=read_uncommitted: a live group gives committed entries only: leave it out, or tail the "
            "store of a member by its path"
        )
    if options.table != "log":
        raise OptionError(f"expected table log of a live group, found {options.table}: load the path of a store for it")
