"""The options that only a replay has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_dledger.cluster.address import ClusterAddress
from pyspark_dledger.cluster.options import AccessOptions
from pyspark_dledger.common.options import BOOLEAN, COUNT, NAMES, TEXT, Parser, by_key, option, options_of, parse_values
from pyspark_dledger.format.state_files import crc32
from pyspark_dledger.log.options import REPLAY, ReadOptions, check_use, parse_options


def _file(value: object) -> str:
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise ValueError
    return str(Path(value).absolute())


def _crc_of(path: str) -> int | None:
    """The checksum of a list; None if it cannot be read, which its reader says."""
    try:
        return crc32(Path(path).read_bytes())
    except OSError:
        return None


@dataclass(frozen=True, repr=False)
class ReplayOptions(AccessOptions):
    """Which messages of the chosen range are sent, to which queues, and how."""

    keys: tuple[str, ...] | None = option(None, NAMES, "list: only these keys or uniqKeys")
    lost_list: str | None = option(None, Parser("a path", _file), "`lost.jsonl`: only messages at its positions")
    same_queues: bool = option(False, BOOLEAN, "queue ids stay; default: modulo their number")
    broker: str | None = option(None, TEXT, "only its queues")
    keep_uniq_key: bool = option(True, BOOLEAN, "false: new ones")
    messages_per_second: int | None = option(None, COUNT, "limit of the rate")
    send_unknown: bool = option(False, BOOLEAN, "send unknown messages again")

    @property
    def request(self) -> dict[str, Any]:
        """The options that a run which continues a replay must have, too."""
        found = {name: getattr(self, name) for name in ("keys", "lost_list", "same_queues", "broker", "keep_uniq_key")}
        return {**found, "lost_list_crc32": None if self.lost_list is None else _crc_of(self.lost_list)}


_BY_KEY = by_key(options_of(ReplayOptions))
REPLAY_OPTIONS = tuple(each for each in _BY_KEY.values() if each not in options_of(AccessOptions))


def parse_replay_options(options: Mapping[str, Any]) -> tuple[ClusterAddress, ReadOptions, ReplayOptions]:
    """The cluster, which messages of the log, and how they are sent. Raises OptionError; no error has a secret."""
    own = {name: value for name, value in options.items() if name.lower() in _BY_KEY}
    read = parse_options({name: value for name, value in options.items() if name not in own})
    check_use(read, REPLAY)
    parsed = ReplayOptions(**parse_values(own, lambda name: _BY_KEY[name.lower()]))
    return parsed.address_with(read), read, parsed
