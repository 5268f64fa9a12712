"""The keys of messages, as RocketMQ's IndexFiles have them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pyspark_dledger.format.arrow_functions import compute as pc
from pyspark_dledger.format.column_values import column_of, is_valid, scalar_of, values_of
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.log.io.key_files import MAX_HASH
from pyspark_dledger.rocketmq.message_arrays import Longs


@dataclass(frozen=True)
class Keys:
    """Keys in the order of the log: their message's ``offset`` in it, its ``stored`` time in ms, and ``key_hash``."""

    offset: Longs
    stored: Longs
    key_hash: Longs

    def __len__(self) -> int:
        return len(self.offset)

    def __getitem__(self, which: slice) -> Keys:
        return Keys(self.offset[which], self.stored[which], self.key_hash[which])


_SEPARATOR = scalar_of("#")


def keys_of(engine: Engine, rows: pa.RecordBatch, offset: Longs, stored: Longs, has_tags: bool = False) -> Keys:
    """The keys of messages with the columns topic, uniqKey, keys and tags.

    Of each message its UNIQ_KEY, then those of KEYS, and if `has_tags` its TAGS, as RocketMQ 5.5.0 does.
    """
    topics, unique, joined = rows["topic"], rows["uniqKey"], rows["keys"]
    row, text = np.flatnonzero(is_valid(unique)), unique.drop_null()
    others = [_words(joined)] if joined.null_count < len(joined) else []
    others += [_tags(rows["tags"])] if has_tags else []
    if others:
        row = np.concatenate([row, *(other_row for _, other_row in others)])
        order = np.argsort(row, kind="stable")
        row, text = row[order], pa.concat_arrays([text, *(words for words, _ in others)]).take(column_of(order))
    if not len(row):
        return Keys(*(np.empty(0, np.int64) for _ in range(3)))
    named = pc.binary_join_element_wise(topics.take(column_of(row)), text, _SEPARATOR)
    hashes = np.abs(engine.java_hashes(named).astype(np.int64))
    # Math.abs leaves Integer.MIN_VALUE negative, and negative hashes become 0 (IndexFile.indexKeyHashMethod).
    hashes[hashes > MAX_HASH] = 0
    return Keys(offset[row], stored[row], hashes)


def _tags(tags: pa.Array) -> tuple[pa.Array, Longs]:
    """What a unit of tags has for a key (``IndexService.buildKey``), and the rows they are from."""
    tags = pc.if_else(pc.equal(pc.binary_length(tags), 0), None, tags)
    prefixed = pc.binary_join_element_wise(scalar_of("T"), tags.drop_null(), _SEPARATOR)
    return prefixed, np.flatnonzero(is_valid(tags))


def _words(joined: pa.Array) -> tuple[pa.Array, Longs]:
    """The keys in each row's KEYS, separated by blanks, and the rows they are from."""
    has_keys = np.flatnonzero(is_valid(joined))
    lists = pc.split_pattern(joined.drop_null(), " ")
    words, row = lists.flatten(), values_of(pc.list_parent_indices(lists))
    is_word = values_of(pc.binary_length(words)) > 0
    return words.filter(column_of(is_word)), has_keys[row[is_word]]
