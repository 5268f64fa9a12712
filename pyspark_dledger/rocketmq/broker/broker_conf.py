"""A broker's ``broker.conf``: what it means for a node of ours, as the constructor of ``DLedgerCommitLog`` has it.

Sources: RocketMQ 4.9.8 and 5.3.3 ``DLedgerCommitLog``, ``MessageStoreConfig``, ``BrokerConfig``, ``MixAll``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.common.options import parse_boolean
from pyspark_dledger.common.retention import Retention
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.layout import CONSUME_QUEUE_UNIT_SIZE
from pyspark_dledger.format.message import encode_host
from pyspark_dledger.format.state_files import property_lines
from pyspark_dledger.rocketmq.dispatch.dispatch_settings import DispatchSettings

_LARGEST_MESSAGE = 4 * 1024 * 1024
_DEFAULT_PORT = 10911
_SELF_ID = re.compile(r".(-?[0-9]{1,9})")
_LEVELS = re.compile(r"[0-9]{1,9}[smhd]")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Said(NamedTuple):
    """A node's setting by the name that `serve --config` has for it, and where it was said."""

    text: str
    place: str


@dataclass(frozen=True)
class BrokerConf:
    """What a broker.conf means: a node's settings by name, and how messages are served.

    ``broker_id`` is that of this member while it is no master (a master's is 0). ``store_host`` is what messages say
    to be stored at; None where the file does not. ``passed_over`` names what has no meaning here.
    """

    settings: dict[str, Said]
    broker_id: int
    store_host: bytes | None
    dispatch: DispatchSettings
    max_message_size: int
    passed_over: tuple[str, ...]


class _Given:
    """The lines of a file, and which of them were asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, tuple[int, str]] = {}
        self._asked: set[str] = set()
        try:
            # As in java.util.Properties the last one of a name holds.
            for line, name, text in property_lines(path.read_bytes()):
                self._lines[name] = (line, text.strip())
        except (OSError, ValueError) as error:
            raise OptionError(f"broker-conf {path}: expected key=value lines, found {error}") from None

    def place(self, name: str) -> str:
        line = self._lines.get(name)
        return f"broker-conf {self._path} line {line[0]}" if line else f"broker-conf {self._path}"

    def text(self, *names: str, default: str = "") -> Said:
        """The first of these names that is there with a value."""
        self._asked.update(names)
        for name in names:
            if self._lines.get(name, (0, ""))[1]:
                return Said(self._lines[name][1], self.place(name))
        return Said(default, self.place(names[0]))

    def number(self, name: str, default: int, least: int = 1) -> int:
        said = self.text(name, default=str(default))
        if not re.fullmatch(r"[0-9]{1,18}", said.text) or int(said.text) < least:
            raise OptionError(f"{said.place}: {name}: expected a whole number, at least {least}, found {said.text!r}")
        return int(said.text)

    def boolean(self, name: str, default: bool) -> bool:
        said = self.text(name, default=str(default).lower())
        try:
            return parse_boolean(said.text)
        except ValueError:
            raise OptionError(f"{said.place}: {name}: expected true or false, found {said.text!r}") from None

    def passed_over(self) -> tuple[str, ...]:
        return tuple(name for name in self._lines if name not in self._asked)


def read_broker_conf(path: Path, home: Callable[[], Path] = Path.home) -> BrokerConf:
    """The meaning of a broker.conf. Raises OptionError where it cannot be read, or is none of a broker in DLedger mode.

    What it does not say has the defaults of RocketMQ, not those of a node of ours; `home` is the user's folder, in
    which a broker without storePathRootDir has its store.
    """
    given = _Given(path)
    if not given.boolean("enableDLegerCommitLog", False):
        said = given.text("enableDLegerCommitLog", default="nothing")
        raise OptionError(
            f"{said.place}: enableDLegerCommitLog: expected true, of a broker in DLedger mode, found {said.text}: "
            "only such a broker is a member of a group"
        )
    settings = _settings(given, home)
    max_message_size = given.number("maxMessageSize", _LARGEST_MESSAGE)
    return BrokerConf(
        settings=settings,
        broker_id=broker_id(settings["selfId"].text, settings["selfId"].place),
        store_host=_store_host(given),
        dispatch=_dispatch(given),
        max_message_size=min(max_message_size, _LARGEST_MESSAGE),
        passed_over=given.passed_over(),
    )


def read_dispatch_settings(path: Path) -> DispatchSettings:
    """How a broker with that broker.conf writes ConsumeQueue and index, in DLedger mode or not. Raises OptionError."""
    return _dispatch(_Given(path))


def broker_id(self_id: str, place: str = "selfId") -> int:
    """``DLedgerCommitLog.getId``: the number in a member's id and one more. Raises OptionError where there is none."""
    found = _SELF_ID.fullmatch(self_id)
    if found is None:
        raise OptionError(f"{place}: dLegerSelfId: expected a letter and a number, such as n0, found {self_id!r}")
    return int(found[1]) + 1


def _settings(given: _Given, home: Callable[[], Path]) -> dict[str, Said]:
    """In the order of the constructor of ``DLedgerCommitLog``."""
    retention = _retention(given)
    settings = {
        "enableDiskForceClean": Said(
            str(retention.enable_disk_force_clean).lower(), given.place("cleanFileForciblyEnable")
        ),
        "selfId": given.text("dLegerSelfId"),
        "group": given.text("dLegerGroup"),
        "peers": given.text("dLegerPeers"),
        "storeBaseDir": given.text("storePathRootDir", default=str(home() / "store")),
        "dataStorePath": given.text("storePathDLedgerCommitLog"),
        "readOnlyDataStoreDirs": given.text("readOnlyCommitLogStorePaths"),
        # The older spelling is that of RocketMQ before 4.8.
        "mappedFileSizeForEntryData": given.text("mappedFileSizeCommitLog", "mapedFileSizeCommitLog"),
        "deleteWhen": Said(retention.delete_when, given.place("deleteWhen")),
        # An old CommitLog goes first.
        "fileReservedHours": Said(str(retention.file_reserved_hours + 1), given.place("fileReservedTime")),
        "preferredLeaderIds": given.text("preferredLeaderIds", "preferredLeaderId"),
        "enableBatchPush": Said(str(given.boolean("enableBatchPush", False)).lower(), given.place("enableBatchPush")),
        "diskSpaceRatioToCheckExpired": Said(
            str(retention.disk_space_ratio_to_check_expired), given.place("diskMaxUsedSpaceRatio")
        ),
    }
    missing = [java for java, name in _NEEDED.items() if not settings[name].text]
    if missing:
        raise OptionError(
            f"{given.place('')}: expected dLegerGroup, dLegerSelfId and dLegerPeers, found no {missing[0]}"
        )
    return {name: said for name, said in settings.items() if said.text}


_NEEDED = {"dLegerGroup": "group", "dLegerSelfId": "selfId", "dLegerPeers": "peers"}


def _store_host(given: _Given) -> bytes | None:
    """brokerIP1 and listenPort, which messages of this broker carry."""
    said = given.text("brokerIP1")
    port = given.number("listenPort", _DEFAULT_PORT)
    if not said.text:
        return None
    try:
        return encode_host(str(ipaddress.ip_address(said.text)), port)
    except ValueError:
        raise OptionError(f"{said.place}: brokerIP1: expected an IP address, found {said.text!r}") from None


def _dispatch(given: _Given) -> DispatchSettings:
    """How ConsumeQueue and IndexFile are written, and when files of an old CommitLog are deleted."""
    queue_size = given.text("mappedFileSizeConsumeQueue", "mapedFileSizeConsumeQueue", default="6000000")
    units = -(-_whole(queue_size, "mappedFileSizeConsumeQueue") // CONSUME_QUEUE_UNIT_SIZE)
    defaults = DispatchSettings()
    return DispatchSettings(
        units_per_file=units,
        hash_slots=given.number("maxHashSlotNum", defaults.hash_slots),
        index_units=given.number("maxIndexNum", defaults.index_units),
        has_index=given.boolean("messageIndexEnable", True),
        delays_ms=_delays(given.text("messageDelayLevel"), defaults.delays_ms),
        clean=_retention(given),
    )


def _retention(given: _Given) -> Retention:
    """When an old CommitLog's files are deleted, with RocketMQ's defaults."""
    when = given.text("deleteWhen", default=Retention.delete_when)
    # Java takes the nearer end for a percentage outside [10, 95].
    percent = min(max(given.number("diskMaxUsedSpaceRatio", 75, least=0), 10), 95)
    try:
        return Retention(
            delete_when=when.text,
            file_reserved_hours=given.number("fileReservedTime", Retention.file_reserved_hours),
            disk_space_ratio_to_check_expired=percent / 100,
            enable_disk_force_clean=given.boolean("cleanFileForciblyEnable", Retention.enable_disk_force_clean),
        )
    except OptionError as error:
        raise OptionError(f"{when.place}: {str(error).replace('delete_when', 'deleteWhen')}") from None


def _whole(said: Said, name: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", said.text) or int(said.text) < 1:
        raise OptionError(f"{said.place}: {name}: expected a whole number, at least 1, found {said.text!r}")
    return int(said.text)


def _delays(said: Said, default: tuple[int, ...]) -> tuple[int, ...]:
    """Levels such as ``1s 5s 1m``, in milliseconds (``ScheduleMessageService.parseDelayLevel``)."""
    if not said.text:
        return default
    levels = said.text.split(" ")
    if not all(_LEVELS.fullmatch(level) for level in levels):
        raise OptionError(f"{said.place}: messageDelayLevel: expected times such as 1s 5s 1m 2h, found {said.text!r}")
    return tuple(int(level[:-1]) * _UNIT_MS[level[-1]] for level in levels)
