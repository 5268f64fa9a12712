"""Reads a broker's ``broker.conf`` as settings of a node, like the constructor of ``DLedgerCommitLog``.

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
from pyspark_dledger.rocketmq.dispatch.dispatcher import DispatchSettings

_MAX_MESSAGE_SIZE = 4 * 1024 * 1024
_DEFAULT_PORT = 10911
_SELF_ID = re.compile(r".(-?[0-9]{1,9})")
_LEVELS = re.compile(r"[0-9]{1,9}[smhd]")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class BrokerSetting(NamedTuple):
    """The text of a setting, and the file and line it is from."""

    text: str
    source: str


@dataclass(frozen=True)
class BrokerConf:
    """The settings of a broker.conf: a node's by their names in `serve --config`, and those of messages.

    ``broker_id`` is that of this member while it is no master (a master's is 0). ``store_host`` is the storeHost of
    messages; None if the file has none. ``ignored`` names settings without effect here.
    """

    settings: dict[str, BrokerSetting]
    broker_id: int
    store_host: bytes | None
    dispatch: DispatchSettings
    max_message_size: int
    ignored: tuple[str, ...]


class _Properties:
    """The lines of a file, and which of them were used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, tuple[int, str]] = {}
        self._used: set[str] = set()
        try:
            # As in java.util.Properties, the last line of a name counts.
            for line, name, text in property_lines(path.read_bytes()):
                self._lines[name] = (line, text.strip())
        except (OSError, ValueError) as error:
            raise OptionError(f"broker-conf {path}: expected key=value lines, found {error}") from None

    def source(self, name: str) -> str:
        line = self._lines.get(name)
        return f"broker-conf {self._path} line {line[0]}" if line else f"broker-conf {self._path}"

    def text(self, *names: str, default: str = "") -> BrokerSetting:
        """The setting of the first of these names that has a value."""
        self._used.update(names)
        for name in names:
            if self._lines.get(name, (0, ""))[1]:
                return BrokerSetting(self._lines[name][1], self.source(name))
        return BrokerSetting(default, self.source(names[0]))

    def number(self, *names: str, default: int, min_value: int = 1) -> int:
        setting = self.text(*names, default=str(default))
        if not re.fullmatch(r"[0-9]{1,10}", setting.text) or int(setting.text) < min_value:
            raise OptionError(
                f"{setting.source}: {names[0]}: expected a whole number, at least {min_value}, found {setting.text!r}"
            )
        return int(setting.text)

    def boolean(self, name: str, default: bool) -> bool:
        setting = self.text(name, default=str(default).lower())
        try:
            return parse_boolean(setting.text)
        except ValueError:
            raise OptionError(f"{setting.source}: {name}: expected true or false, found {setting.text!r}") from None

    def ignored(self) -> tuple[str, ...]:
        return tuple(name for name in self._lines if name not in self._used)


def read_broker_conf(path: Path, home: Callable[[], Path] = Path.home) -> BrokerConf:
    """Read a broker.conf. Raises OptionError if it cannot be read, or if its broker is not in DLedger mode.

    Missing settings have RocketMQ's defaults, not those of a node. `home` returns the user's home folder, which has the
    store of a broker without storePathRootDir.
    """
    given = _Properties(path)
    if not given.boolean("enableDLegerCommitLog", False):
        setting = given.text("enableDLegerCommitLog", default="nothing")
        raise OptionError(
            f"{setting.source}: enableDLegerCommitLog: expected true, of a broker in DLedger mode, "
            f"found {setting.text}: other brokers are no members of a group"
        )
    settings = _settings(given, home)
    max_message_size = given.number("maxMessageSize", default=_MAX_MESSAGE_SIZE)
    return BrokerConf(
        settings=settings,
        broker_id=broker_id(settings["selfId"].text, settings["selfId"].source),
        store_host=_store_host(given),
        dispatch=_dispatch(given),
        max_message_size=min(max_message_size, _MAX_MESSAGE_SIZE),
        ignored=given.ignored(),
    )


def read_dispatch_settings(path: Path) -> DispatchSettings:
    """How a broker writes ConsumeQueues and IndexFiles, in DLedger mode or not. Raises OptionError."""
    return _dispatch(_Properties(path))


def broker_id(self_id: str, source: str = "selfId") -> int:
    """``DLedgerCommitLog.getId``: the number in a member's id plus 1. Raises OptionError if there is none."""
    found = _SELF_ID.fullmatch(self_id)
    if found is None:
        raise OptionError(f"{source}: dLegerSelfId: expected a letter and a number, such as n0, found {self_id!r}")
    return int(found[1]) + 1


def _settings(given: _Properties, home: Callable[[], Path]) -> dict[str, BrokerSetting]:
    """In the order of the constructor of ``DLedgerCommitLog``."""
    retention = _retention(given)

    def parsed(value: object, name: str) -> BrokerSetting:
        return BrokerSetting(str(value).lower(), given.source(name))

    settings = {
        "enableDiskForceClean": parsed(retention.enable_disk_force_clean, "cleanFileForciblyEnable"),
        "selfId": given.text("dLegerSelfId"),
        "group": given.text("dLegerGroup"),
        "peers": given.text("dLegerPeers"),
        "storeBaseDir": given.text("storePathRootDir", default=str(home() / "store")),
        "dataStorePath": given.text("storePathDLedgerCommitLog"),
        "readOnlyDataStoreDirs": given.text("readOnlyCommitLogStorePaths"),
        # The second spelling is from before RocketMQ 4.8.
        "mappedFileSizeForEntryData": given.text("mappedFileSizeCommitLog", "mapedFileSizeCommitLog"),
        "deleteWhen": parsed(retention.delete_when, "deleteWhen"),
        # Later than those of an old CommitLog.
        "fileReservedHours": parsed(retention.file_reserved_hours + 1, "fileReservedTime"),
        "preferredLeaderIds": given.text("preferredLeaderIds", "preferredLeaderId"),
        "enableBatchPush": parsed(given.boolean("enableBatchPush", False), "enableBatchPush"),
        "diskSpaceRatioToCheckExpired": parsed(retention.disk_space_ratio_to_check_expired, "diskMaxUsedSpaceRatio"),
    }
    for java, name in (("dLegerGroup", "group"), ("dLegerSelfId", "selfId"), ("dLegerPeers", "peers")):
        if not settings[name].text:
            raise OptionError(
                f"{given.source('')}: expected dLegerGroup, dLegerSelfId and dLegerPeers, found no {java}"
            )
    return {name: setting for name, setting in settings.items() if setting.text}


def _store_host(given: _Properties) -> bytes | None:
    """brokerIP1 and listenPort as the storeHost of messages."""
    setting = given.text("brokerIP1")
    port = given.number("listenPort", default=_DEFAULT_PORT)
    if not setting.text:
        return None
    try:
        return encode_host(str(ipaddress.ip_address(setting.text)), port)
    except ValueError:
        raise OptionError(f"{setting.source}: brokerIP1: expected an IP address, found {setting.text!r}") from None


def _dispatch(given: _Properties) -> DispatchSettings:
    """How ConsumeQueues and IndexFiles are written, and when files of an old CommitLog are deleted."""
    defaults = DispatchSettings()
    default_size = defaults.units_per_file * CONSUME_QUEUE_UNIT_SIZE
    queue_size = given.number("mappedFileSizeConsumeQueue", "mapedFileSizeConsumeQueue", default=default_size)
    return DispatchSettings(
        units_per_file=-(-queue_size // CONSUME_QUEUE_UNIT_SIZE),
        hash_slots=given.number("maxHashSlotNum", default=defaults.hash_slots),
        index_units=given.number("maxIndexNum", default=defaults.index_units),
        has_index=given.boolean("messageIndexEnable", True),
        delays_ms=_delays(given.text("messageDelayLevel"), defaults.delays_ms),
        clean=_retention(given),
    )


def _retention(given: _Properties) -> Retention:
    """When an old CommitLog's files are deleted, with RocketMQ's defaults."""
    when = given.text("deleteWhen", default=Retention.delete_when)
    # Java takes the nearer end for a percentage outside [10, 95].
    percent = min(max(given.number("diskMaxUsedSpaceRatio", default=75, min_value=0), 10), 95)
    try:
        return Retention(
            delete_when=when.text,
            file_reserved_hours=given.number("fileReservedTime", default=Retention.file_reserved_hours),
            disk_space_ratio_to_check_expired=percent / 100,
            enable_disk_force_clean=given.boolean("cleanFileForciblyEnable", Retention.enable_disk_force_clean),
        )
    except OptionError as error:
        raise OptionError(f"{when.source}: {str(error).replace('delete_when', 'deleteWhen')}") from None


def _delays(setting: BrokerSetting, default: tuple[int, ...]) -> tuple[int, ...]:
    """Levels such as ``1s 5s 1m``, in milliseconds (``ScheduleMessageService.parseDelayLevel``)."""
    if not setting.text:
        return default
    levels = setting.text.split(" ")
    if not all(_LEVELS.fullmatch(level) for level in levels):
        raise OptionError(
            f"{setting.source}: messageDelayLevel: expected times such as 1s 5s 1m 2h, found {setting.text!r}"
        )
    return tuple(int(level[:-1]) * _UNIT_MS[level[-1]] for level in levels)
