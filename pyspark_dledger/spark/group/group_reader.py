"""The batch reader of a live group."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_dledger.format.engine import get_engine
from pyspark_dledger.log.options import ReadOptions, option_filters
from pyspark_dledger.log.plan import scan_template
from pyspark_dledger.spark.group.group_log import GroupLog
from pyspark_dledger.spark.group.group_partition import GroupPartition, GroupScan, read_group_partition
from pyspark_dledger.spark.group.group_plan import address_of, batch_bounds, group_parts
from pyspark_dledger.spark.plain_errors import plain_errors
from pyspark_dledger.spark.read.batch_reader import PartReader, write_statistics


class GroupReader(PartReader, DataSourceReader):
    """Reads what is committed when the read is planned. Tasks connect to members themselves."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        super().__init__(schema)
        self.options = options
        self.filters = option_filters(options)

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        """Plan the entries. Raises GroupError with the error of each member if none responds."""
        options, address = self.options, address_of(self.options)
        request = scan_template(self.columns, options, self.filters)
        engine = get_engine(options.engine).NAME
        scan = GroupScan(address, request, engine, options.fail_on_data_loss, is_stream=False)
        with GroupLog(address) as log:
            bounds = batch_bounds(log, options, self.filters)
            if bounds is None:
                return []
            first, last = bounds
            parts = [InputPartition(part) for part in group_parts(log, scan, options, first, last)]
        write_statistics(parts, last.index - first.index + 1, last.end - first.pos)
        return parts

    def read_part(self, part: GroupPartition) -> Iterator[pa.RecordBatch]:
        return read_group_partition(part)
