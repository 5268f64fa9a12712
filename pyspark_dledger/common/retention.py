"""When the files of a log expire, as RocketMQ and DLedger decide it."""

from __future__ import annotations

import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark_dledger.common.options import BOOLEAN, COUNT, RATIO, Parser, option
from pyspark_dledger.errors import OptionError

_HOURS = re.compile(r"\d{1,2}(;\d{1,2})*")
_HOUR_SECONDS = 3600.0

PRODUCER_ID_EXPIRY_MS = 7 * 24 * 3600 * 1000
"""How long identities of messages are kept by default, from their store timestamp."""


def _parse_hours(value: object) -> str:
    if not isinstance(value, str) or not _HOURS.fullmatch(value) or any(int(hour) > 23 for hour in value.split(";")):
        raise ValueError
    return value


HOURS = Parser("hours of the day such as 04 or 04;16", _parse_hours)


@dataclass(frozen=True, kw_only=True)
class Retention:
    """When files are deleted, with the defaults of DLedger 0.3.1.2; ratios are of the disk, from 0 to 1.

    Raises OptionError for a value out of range.
    """

    delete_when: str = option("04", HOURS, "when expired files are deleted")
    file_reserved_hours: int = option(72, COUNT, "hours until an unchanged data file expires")
    disk_space_ratio_to_check_expired: float = option(
        0.70, RATIO, "above this disk usage expired files are deleted at once"
    )
    disk_space_ratio_to_force_clean: float = option(0.85, RATIO, "above this disk usage the oldest files are deleted")
    enable_disk_force_clean: bool = option(True, BOOLEAN, "false: they stay, and a full disk rejects appends")

    def __post_init__(self) -> None:
        try:
            _parse_hours(self.delete_when)
        except ValueError:
            raise OptionError(f"delete_when: expected {HOURS.accepts}, found {self.delete_when!r}") from None
        if self.file_reserved_hours < 1:
            raise OptionError(f"file_reserved_hours: expected at least 1, found {self.file_reserved_hours}")

    def is_due(self, now: float, used: float) -> bool:
        """Whether expired files are deleted at `now` (seconds since 1970), with the fullest disk at ratio `used`."""
        hours = (int(hour) for hour in self.delete_when.split(";"))
        return used > self.disk_space_ratio_to_check_expired or time.localtime(now).tm_hour in hours

    def expires_before(self, now: float) -> float:
        """Files last changed before this time have expired; both in seconds since 1970."""
        return now - self.file_reserved_hours * _HOUR_SECONDS


def used_ratio(path: Path) -> float:
    """The used part of a folder's disk, from 0 to 1; space reserved for the superuser counts as used."""
    usage = shutil.disk_usage(path)
    return usage.used / (usage.used + usage.free) if usage.used + usage.free else 0.0
