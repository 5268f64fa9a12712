"""A node's settings as texts, in a ``key=value`` file or as flags, under the names of Java's ``DLedgerConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.common.options import Option, Parser, choice, options_of, parse_boolean, similar
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.state_files import property_lines
from pyspark_dledger.raft.core import CoreConfig
from pyspark_dledger.raft.node.node_config import PATH, NodeConfig
from pyspark_dledger.raft.tls import Tls
from pyspark_dledger.store.store_config import StoreConfig

STORE_TYPES = ("FILE", "MEMORY")


class Setting(NamedTuple):
    """An option of ``part``: ``node``, ``store`` or ``core``; empty for what is only accepted."""

    part: str
    option: Option


class NodeSettings(dict[str, str]):
    """Texts by the names of settings, and in ``places`` where each was said, for errors."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, str] = {}

    def say(self, name: str, text: str, place: str) -> None:
        """Set one, whatever it was."""
        self[name] = text
        self.places[name] = place


def _must_be_true(value: object) -> bool:
    if not parse_boolean(value):
        raise ValueError
    return True


# What Java can switch off and a node of ours cannot.
_ALWAYS = Parser("true, which cannot be changed here", _must_be_true)
_OF_NODES = (
    *options_of(NodeConfig),
    Option("storeType", "store_type", "FILE", choice(STORE_TYPES), "MEMORY: nothing survives the process"),
    Option("tlsCert", "tls_cert", None, PATH, "PEM file of the certificate; TLS needs all three"),
    Option("tlsKey", "tls_key", None, PATH, "PEM file of its key"),
    Option("tlsCa", "tls_ca", None, PATH, "PEM file of the CA that signed all certificates"),
)

SETTINGS: Mapping[str, Setting] = {
    **{option.name: Setting("node", option) for option in _OF_NODES},
    **{option.name: Setting("store", option) for option in options_of(StoreConfig)},
    **{option.name: Setting("core", option) for option in options_of(CoreConfig)},
    **{
        name: Setting("", Option(name, name, "true", _ALWAYS, "always true; accepted for Java's files"))
        for name in ("enableLeaderElector", "enablePushToFollower")
    },
}
"""Every setting of a node by its name, in the order of the documentation."""

_REPAIR = "truncateAt"
_REQUIRED = ("group", "selfId", "peers")
_TLS = ("tls_cert", "tls_key", "tls_ca")
# Similarity from which an unknown name is taken for a misspelt setting.
_SIMILARITY = 0.8
# What errors of StoreConfig and CoreConfig begin with, and the settings that they mean.
_NAMES = {
    **{setting.option.field: name for name, setting in SETTINGS.items()},
    "vote interval": "minVoteIntervalMs and maxVoteIntervalMs",
    "vote interval while taking leadership": "minTakeLeadershipVoteIntervalMs and maxTakeLeadershipVoteIntervalMs",
}


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
    missing = [name for name in _REQUIRED if not settings.get(name)]
    if missing:
        raise OptionError(f"config: {' and '.join(missing)} missing: set group, selfId and peers")
    places = settings.places if isinstance(settings, NodeSettings) else {}
    parts: dict[str, dict[str, object]] = {"node": {}, "store": {}, "core": {}, "": {}}
    for name, text in settings.items():
        place = places.get(name, "config")
        setting = SETTINGS.get(name)
        if setting is None:
            raise OptionError(f"{place}: unknown setting {name}: {_advice(name)}")
        parts[setting.part][setting.option.field] = _parsed(f"{place}: {name}", setting, text.strip())
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
    near = similar(name, SETTINGS, _SIMILARITY)
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
    parser = setting.option.parser
    try:
        return parser.parse(text)
    except ValueError:
        raise OptionError(f"{what}: expected {parser.accepts}, found {text!r}") from None


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
