"""What the starts of all brokers have in common, with DLedger and without; the store is only read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyspark_dledger.common.java_text import decode_utf8
from pyspark_dledger.format.message import transaction
from pyspark_dledger.log.io.key_files import read_header
from pyspark_dledger.log.io.state_files import MARGIN_MS, read_store_checkpoint
from pyspark_dledger.log.recovery.java_files import JavaFile, list_folder
from pyspark_dledger.log.store_view import StoreView
from pyspark_dledger.rocketmq.recovery.java_messages import JavaMessage, MessageRules, first_message
from pyspark_dledger.rocketmq.recovery.recovery_queues import RecoveredQueues

Release = tuple[int, ...]


class BrokerStart:
    """One start of a broker of a release on the store in `root`.

    ``abort``: it was not closed cleanly. ``cut_at``: queues lose their units from this offset on, None if none does.
    """

    def __init__(self, log: StoreView, root: Path, version: str, release: Release) -> None:
        self.log = log
        self.root = root
        self.version = version
        self.release = release
        self.rules = MessageRules.of(release)
        self.abort = (root / "abort").exists()
        # Messages after those of all queues are dispatched even after a clean end.
        self.dispatches_rest = release >= (5, 3, 2)
        self.checkpoint = read_store_checkpoint(root)
        self.queues = RecoveredQueues(root)
        self.notes: list[str] = []
        self.cut_at: int | None = None

    def deleted_index_files(self) -> list[str]:
        """After an unclean end: the IndexFiles whose last message is newer than the store checkpoint."""
        paths = list_folder(self.root / "index") if self.abort else []
        headers = ((path.name, read_header(path)) for path in paths if path.name.isdecimal() and path.is_file())
        limit = self.checkpoint.index_msg_timestamp
        return sorted(name for name, header in headers if header is not None and header.end_timestamp > limit)

    @property
    def covered_until(self) -> int:
        """The store timestamp up to which the store checkpoint covers messages, in ms since 1970."""
        covered = min(self.checkpoint.physic_msg_timestamp, self.checkpoint.logics_msg_timestamp)
        return max(covered - MARGIN_MS, 0)

    def covered_file(self, files: list[JavaFile], magics: tuple[int, ...], shift: int = 0) -> int:
        """The number of the newest file whose first message the store checkpoint covers, else of the first file."""
        for number in range(len(files) - 1, 0, -1):
            magic, time = first_message(files[number], shift) or (0, 0)
            if magic in magics and 0 != time <= self.covered_until:
                return number
        return 0

    def dispatch(self, message: JavaMessage) -> None:
        """Add the message's unit to its queue."""
        if transaction(message.sys_flag) in ("none", "commit"):
            topic = decode_utf8(message.topic)
            self.queues.put(topic, message.queue_id, message.queue_offset, message.offset, message.size)


def paths_in(folders: Iterable[Path]) -> list[Path]:
    """The contents of the folders of a log, by name."""
    return sorted((path for folder in folders for path in list_folder(folder)), key=lambda path: path.name)
