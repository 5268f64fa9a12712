"""A node's settings as texts, in a ``key=value`` file or as flags, under the names of Java's ``DLedgerConfig``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.state_files import property_lines
from pyspark_dledger.log.options import parse_boolean, parse_size, similar
from pyspark_dledger.raft.core import CoreConfig
from pyspark_dledger.raft.node.node_config import NodeConfig
from pyspark_dledger.raft.tls import Tls
from pyspark_dledger.store.store_config import FLUSHES, StoreConfig

STORE_TYPES = ("FILE", "MEMORY")


class Setting(NamedTuple):
    """How a text becomes a value of ``part`` (``node``, ``store`` or ``core``), there called ``field``; its meaning."""

    part: str
    field: str
    parse: Callable[[str], object]
    expected: str
    meaning: str


class NodeSettings(dict[str, str]):
    """Texts by the names of settings, and in ``places`` where each was said, for errors."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, str] = {}

    def say(self, name: str, text: str, place: str) -> None:
        """Set one, whatever it was."""
        self[name] = text
        self.places[name] = place


def _positive(text: str) -> int:
    if int(text) < 1:
        raise ValueError
    return int(text)


def _must_be_true(text: str) -> bool:
    if not parse_boolean(text):
        raise ValueError
    return True


def _folders(text: str) -> tuple[Path, ...]:
    return tuple(Path(part.strip()) for part in text.split(",") if part.strip())


def _ids(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.replace(",", ";").split(";") if part.strip())


def _choice(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in values:
            raise ValueError
        return text

    return parse


_SIZE = "a size in bytes, such as 65536, 64k or 1g"
_NUMBER = "a whole number"
_COUNT = "a whole number, at least 1"
_FLAG = "true or false"
_TEXT, _PATH, _RATIO, _FOLDERS = "a text", "a path", "a ratio", "folders, separated by commas"


def _text(field: str, meaning: str) -> Setting:
    return Setting("node", field, str, _TEXT, meaning)


def _path(field: str, meaning: str) -> Setting:
    return Setting("node", field, Path, _PATH, meaning)


def _size(part: str, field: str, meaning: str) -> Setting:
    return Setting(part, field, parse_size, _SIZE, meaning)


def _number(part: str, field: str, meaning: str) -> Setting:
    return Setting(part, field, int, _NUMBER, meaning)


def _count(part: str, field: str, meaning: str) -> Setting:
    return Setting(part, field, _positive, _COUNT, meaning)


def _folder_list(field: str, meaning: str) -> Setting:
    return Setting("store", field, _folders, _FOLDERS, meaning)


def _ratio(field: str, meaning: str) -> Setting:
    return Setting("store", field, float, _RATIO, meaning)


# What Java can switch off and a node of ours cannot.
_ALWAYS = Setting("", "", _must_be_true, "true, which cannot be changed here", "always true; accepted for Java's files")

SETTINGS: Mapping[str, Setting] = {
    "group": _text("group", "the group's name"),
    "selfId": _text("self_id", "this member's id, such as `n0`"),
    "peers": _text("peers", "all members, `n0-HOST:PORT;n1-HOST:PORT`; identical at every member"),
    "storeBaseDir": _path("store", "folder of `dledger-<selfId>/`; created if missing"),
    "storeType": Setting(
        "node", "store_type", _choice(*STORE_TYPES), " or ".join(STORE_TYPES), "MEMORY: nothing survives the process"
    ),
    "listen": _text("listen", "HOST or HOST:PORT; default: its address in `peers`, if that is a loopback one"),
    "flush": Setting(
        "node",
        "flush",
        _choice(*FLUSHES),
        " or ".join(FLUSHES),
        "sync: on disk before the acknowledgement; default: sync in a group of one, else async",
    ),
    "tlsCert": _path("tls_cert", "PEM file of the certificate; TLS needs all three"),
    "tlsKey": _path("tls_key", "PEM file of its key"),
    "tlsCa": _path("tls_ca", "PEM file of the CA that signed all certificates"),
    "maxConnections": _count("node", "max_connections", "further connections are rejected"),
    "mappedFileSizeForEntryData": _size("store", "data_file_size", "size of a data file, in a new store"),
    "mappedFileSizeForEntryIndex": _size("store", "index_file_size", "size of an index file, in a new store"),
    "dataStorePath": _folder_list("data_dirs", "folders of data files, used in turn; default: `data/` of the store"),
    "readOnlyDataStoreDirs": _folder_list("read_only_data_dirs", "folders of data files that are only read"),
    "flushFileInterval": _count("store", "flush_file_interval_ms", "ms between flushes, with flush=async"),
    "checkPointInterval": _count("store", "check_point_interval_ms", "ms between checkpoints"),
    "deleteWhen": Setting("store", "delete_when", str, "hours, such as 04 or 04;16", "when expired files are deleted"),
    "fileReservedHours": _count("store", "file_reserved_hours", "hours until an unchanged data file expires"),
    "diskSpaceRatioToCheckExpired": _ratio(
        "disk_space_ratio_to_check_expired", "above this disk usage expired files are deleted at once"
    ),
    "diskSpaceRatioToForceClean": _ratio(
        "disk_space_ratio_to_force_clean", "above this disk usage the oldest files are deleted"
    ),
    "enableDiskForceClean": Setting(
        "store", "enable_disk_force_clean", parse_boolean, _FLAG, "false: they stay, and a full disk rejects appends"
    ),
    "truncateAt": _number("store", "truncate_at", "repair: moves this entry and all after it to a side file"),
    "heartBeatTimeIntervalMs": _count("core", "heart_beat_time_interval_ms", "ms between heartbeats"),
    "maxHeartBeatLeak": _count("core", "max_heart_beat_leak", "missing heartbeats before an election"),
    "minVoteIntervalMs": _number("core", "min_vote_interval_ms", "ms until a candidate tries again, minimum"),
    "maxVoteIntervalMs": _number("core", "max_vote_interval_ms", "maximum"),
    "minTakeLeadershipVoteIntervalMs": _number(
        "core", "min_take_leadership_vote_interval_ms", "the same during a transfer of leadership, minimum"
    ),
    "maxTakeLeadershipVoteIntervalMs": _number("core", "max_take_leadership_vote_interval_ms", "maximum"),
    "maxWaitAckTimeMs": _count("core", "max_wait_ack_time_ms", "ms until an append without a quorum fails with 502"),
    "maxPushTimeOutMs": _count("core", "max_push_time_out_ms", "ms until a push counts as lost"),
    "maxPendingRequestsNum": _count("core", "max_pending_requests_num", "waiting appends; further ones fail with 503"),
    "maxLeadershipTransferWaitIndex": _number(
        "core", "max_leadership_transfer_wait_index", "entries that a new leader may lack"
    ),
    "leadershipTransferWaitTimeout": _number("core", "leadership_transfer_wait_timeout_ms", "ms to send those"),
    "preferredLeaderIds": Setting(
        "core", "preferred_leader_ids", _ids, "ids, separated by ;", "members that lead if possible"
    ),
    "peerPushQuota": _size("core", "peer_push_quota", "bytes a second to a member that lags far; default: no limit"),
    "peerPushThrottlePoint": _size("core", "peer_push_throttle_point", "lag in bytes from which the quota applies"),
    "enableBatchPush": Setting(
        "core",
        "enable_batch_push",
        parse_boolean,
        _FLAG,
        "several entries in a push to a Java member; others always get several",
    ),
    "maxBatchPushSize": _size("core", "max_batch_push_size", "bytes of such a push"),
    "enableLeaderElector": _ALWAYS,
    "enablePushToFollower": _ALWAYS,
}

_REPAIR = "truncateAt"
_NEEDED = ("group", "selfId", "peers")
_TLS = ("tls_cert", "tls_key", "tls_ca")
# How much like a setting's name another has to be to be taken for it, misspelt.
_NEAR = 0.8
# What the errors of StoreConfig and CoreConfig begin with, and the settings that they mean.
_NAMES = {
    **{setting.field: name for name, setting in SETTINGS.items()},
    "vote interval": "minVoteIntervalMs and maxVoteIntervalMs",
    "vote interval while taking leadership": "minTakeLeadershipVoteIntervalMs and maxTakeLeadershipVoteIntervalMs",
}


def default_of(setting: Setting) -> object:
    """What holds where a setting is not given; None where that depends, or where there is none."""
    owners: dict[str, type] = {"node": NodeConfig, "store": StoreConfig, "core": CoreConfig}
    known = {each.name: each.default for each in fields(owners[setting.part])} if setting.part else {}
    default = known.get(setting.field)
    return None if default is MISSING or default == () else default


def read_settings(path: Path) -> NodeSettings:
    """The settings of a file. Raises OptionError for one that cannot be read or is no properties file."""
    settings, lines = NodeSettings(), dict[str, int]()
    try:
        for line, name, text in property_lines(path.read_bytes()):
            if name in lines:
                raise OptionError(
                    f"config {path} line {line}: expected each setting once, found {name} in line {lines[name]}, too: "
                    "leave one of them out"
                )
            lines[name] = line
            settings.say(name, text, f"config {path} line {line}")
    except OptionError:
        raise
    except (OSError, ValueError) as error:
        raise OptionError(f"config {path}: expected key=value lines, found {error}") from None
    if _REPAIR in settings:
        raise OptionError(
            f"{settings.places[_REPAIR]}: expected settings that hold for every start, found {_REPAIR}: say it once"
        )
    return settings


def node_config(settings: Mapping[str, str]) -> NodeConfig:
    """The configuration that texts mean. Raises OptionError for an unknown name and for a wrong value."""
    places = settings.places if isinstance(settings, NodeSettings) else {}
    parts: dict[str, dict[str, object]] = {"node": {}, "store": {}, "core": {}, "": {}}
    for name, text in settings.items():
        place = places.get(name, "config")
        setting = SETTINGS.get(name)
        if setting is None:
            raise OptionError(f"{place}: unknown setting {name}: {_advice(name)}")
        parts[setting.part][setting.field] = _parsed(f"{place}: {name}", setting, text.strip())
    missing = [name for name in _NEEDED if not settings.get(name)]
    if missing:
        raise OptionError(f"config: expected group, selfId and peers, found no {' and no '.join(missing)}: say them")
    node = parts["node"]
    store = _store_of(node)
    config = NodeConfig(
        store=store,
        tls=_tls_of(node),
        store_options=parts["store"],
        core_options=parts["core"],
        **node,  # type: ignore[arg-type]  # each was parsed by its setting
    )
    _check(config, places)
    return config


def _advice(name: str) -> str:
    """The setting that was meant, where one is much like it."""
    near = similar(name, SETTINGS, _NEAR)
    return f"the nearest is {near}" if near is not None else "docs/node.md lists those that there are"


def _check(config: NodeConfig, places: Mapping[str, str]) -> None:
    """Raises OptionError for values that fit no store and no group, by the names and places of their settings."""
    try:
        members = config.members()
        config.core_config()
        if config.store is not None:
            config.store_config(config.store)
    except OptionError as error:
        field, _, text = str(error).partition(": ")
        name = _NAMES.get(field, field)
        place = next((places[each] for each in name.split(" and ") if each in places), "config")
        raise OptionError(f"{place}: {name}: {text}") from None
    preferred = config.core_options.get("preferred_leader_ids", ())
    assert isinstance(preferred, tuple)
    if strange := [peer_id for peer_id in preferred if peer_id not in members]:
        place = places.get("preferredLeaderIds", "config")
        raise OptionError(
            f"{place}: preferredLeaderIds: expected members, of {', '.join(members)}, found {', '.join(strange)}"
        )


def _parsed(what: str, setting: Setting, text: str) -> object:
    try:
        return setting.parse(text)
    except ValueError:
        raise OptionError(f"{what}: expected {setting.expected}, found {text!r}") from None


def _store_of(node: dict[str, object]) -> Path | None:
    kind, store = node.pop("store_type", "FILE"), node.pop("store", None)
    if kind == "MEMORY":
        return None
    if store is None:
        raise OptionError("config: expected storeBaseDir, the folder of the store, found none: say it")
    assert isinstance(store, Path)
    return store


def _tls_of(node: dict[str, object]) -> Tls | None:
    given = {name: node.pop(name) for name in _TLS if name in node}
    if not given:
        return None
    if len(given) < len(_TLS):
        raise OptionError("tls: expected tlsCert, tlsKey and tlsCa, found not all of them: say all three, or none")
    cert, key, ca = (given[name] for name in _TLS)
    assert isinstance(cert, Path)
    assert isinstance(key, Path)
    assert isinstance(ca, Path)
    return Tls(cert, key, ca)
