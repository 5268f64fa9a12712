"""A node's settings as text, from a ``key=value`` file or flags, with the names of Java's ``DLedgerConfig``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pyspark_dledger.common.options import Option, Parser, choice, options_of, parse_boolean, similar
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.state_files import property_lines
from pyspark_dledger.raft.core import CoreConfig
from pyspark_dledger.raft.node.node_config import PATH, NodeConfig
from pyspark_dledger.raft.secret import read_secret
from pyspark_dledger.raft.tls import Tls
from pyspark_dledger.store.store_config import StoreConfig

STORE_TYPES = ("FILE", "MEMORY")


class Setting(NamedTuple):
    """An option of ``part``: ``node``, ``store`` or ``core``; empty for a setting that is accepted but not used."""

    part: str
    option: Option


class NodeSettings(dict[str, str]):
    """Texts by setting name; ``sources`` says where each was set, for errors."""

    def __init__(self) -> None:
        super().__init__()
        self.sources: dict[str, str] = {}

    def set(self, name: str, text: str, source: str) -> None:
        self[name] = text
        self.sources[name] = source


def _must_be_true(value: object) -> bool:
    if not parse_boolean(value):
        raise ValueError
    return True


# Java can switch these off, our nodes cannot.
_ALWAYS = Parser("true, which cannot be changed here", _must_be_true)
_OF_NODES = (
    *options_of(NodeConfig),
    Option("storeType", "store_type", "FILE", choice(STORE_TYPES), "MEMORY: nothing survives the process"),
    Option("tlsCert", "tls_cert", None, PATH, "PEM file of the certificate; TLS needs all three"),
    Option("tlsKey", "tls_key", None, PATH, "PEM file of its key"),
    Option("tlsCa", "tls_ca", None, PATH, "PEM file of the CA that signed all certificates"),
    Option("secretFile", "secret_file", None, PATH, "file with the secret of clients"),
    Option("memberSecretFile", "member_secret_file", None, PATH, "file with the secret of members"),
)

SETTINGS: Mapping[str, Setting] = {
    **{option.name: Setting("node", option) for option in _OF_NODES},
    **{option.name: Setting("store", option) for option in options_of(StoreConfig)},
    **{option.name: Setting("core", option) for option in options_of(CoreConfig)},
    **{
        name: Setting("", Option(name, name, "true", _ALWAYS, "always true"))
        for name in ("enableLeaderElector", "enablePushToFollower")
    },
}
"""Every setting of a node by its name, in the order of the documentation."""

_ONCE = ("truncateAt", "changeMembers", "join")
_REQUIRED = ("group", "selfId", "peers")
_TLS = ("tls_cert", "tls_key", "tls_ca")
# Similarity from which an unknown name is taken for a misspelt setting.
_SIMILARITY = 0.8
# The settings by the first words of errors of StoreConfig and CoreConfig.
_NAMES = {
    **{setting.option.field: name for name, setting in SETTINGS.items()},
    "vote interval": "minVoteIntervalMs and maxVoteIntervalMs",
    "vote interval while taking leadership": "minTakeLeadershipVoteIntervalMs and maxTakeLeadershipVoteIntervalMs",
}


def read_settings(path: Path) -> NodeSettings:
    """The settings of a file. Raises OptionError if it cannot be read or is not a properties file."""
    settings, lines = NodeSettings(), dict[str, int]()
    try:
        for line, name, text in property_lines(path.read_bytes()):
            if name in lines:
                raise OptionError(
                    f"config {path} line {line}: expected each setting once, found {name} in line {lines[name]}, too: "
                    "leave one of them out"
                )
            lines[name] = line
            settings.set(name, text, f"config {path} line {line}")
    except OptionError:
        raise
    except (OSError, ValueError) as error:
        raise OptionError(f"config {path}: expected key=value lines, found {error}") from None
    for name in filter(settings.__contains__, _ONCE):
        raise OptionError(
            f"{settings.sources[name]}: expected settings for every start, found {name}: use the flag once"
        )
    return settings


def node_config(settings: Mapping[str, str]) -> NodeConfig:
    """The configuration for these settings. Raises OptionError for an unknown name or an invalid value."""
    missing = [name for name in _REQUIRED if not settings.get(name)]
    if missing:
        raise OptionError(f"config: {' and '.join(missing)} missing: set group, selfId and peers")
    sources = settings.sources if isinstance(settings, NodeSettings) else {}
    parts: dict[str, dict[str, object]] = {"node": {}, "store": {}, "core": {}, "": {}}
    for name, text in settings.items():
        source = sources.get(name, "config")
        setting = SETTINGS.get(name)
        if setting is None:
            raise OptionError(f"{source}: unknown setting {name}: {_advice(name)}")
        parts[setting.part][setting.option.field] = _parsed(_place(source, name), setting, text.strip())
    node = parts["node"]
    store = _store_of(node)
    config = NodeConfig(
        store=store,
        tls=_tls_of(node),
        secret=_secret_of(node, "secretFile", "secret_file"),
        member_secret=_secret_of(node, "memberSecretFile", "member_secret_file"),
        store_options=parts["store"],
        core_options=parts["core"],
        **node,  # type: ignore[arg-type]  # each was parsed by its setting
    )
    _check(config, sources)
    return config


def _advice(name: str) -> str:
    """The setting with the most similar name, if there is one."""
    near = similar(name, SETTINGS, _SIMILARITY)
    return f"the nearest is {near}" if near is not None else "docs/node.md lists all settings"


def _check(config: NodeConfig, sources: Mapping[str, str]) -> None:
    """Raises OptionError, with setting and source, for values that fit no store or no group."""
    try:
        members = config.members()
        config.metrics_address()
        config.core_config()
        if config.store is not None:
            config.store_config(config.store)
    except OptionError as error:
        field, _, text = str(error).partition(": ")
        name = _NAMES.get(field, field)
        source = next((sources[each] for each in name.split(" and ") if each in sources), "config")
        raise OptionError(f"{_place(source, name)}: {text}") from None
    preferred = config.core_options.get("preferred_leader_ids", ())
    assert isinstance(preferred, tuple)
    if unknown := [peer_id for peer_id in preferred if peer_id not in members]:
        source = sources.get("preferredLeaderIds", "config")
        raise OptionError(
            f"{source}: preferredLeaderIds: expected members of {', '.join(members)}, found {', '.join(unknown)}"
        )


def _place(source: str, name: str) -> str:
    """Where a setting was given. A flag of its own stands for its name."""
    return source if source.startswith("--") and source != "--set" else f"{source}: {name}"


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
        raise OptionError("config: storeBaseDir missing: set the folder of the store")
    assert isinstance(store, Path)
    return store


def _secret_of(node: dict[str, object], name: str, field: str) -> str | None:
    file = node.pop(field, None)
    assert file is None or isinstance(file, Path)
    return None if file is None else read_secret(file, name)


def _tls_of(node: dict[str, object]) -> Tls | None:
    given = {name: node.pop(name) for name in _TLS if name in node}
    if not given:
        return None
    if len(given) < len(_TLS):
        raise OptionError("tls: expected tlsCert, tlsKey and tlsCa, or none of them: set all three")
    cert, key, ca = (given[name] for name in _TLS)
    assert isinstance(cert, Path)
    assert isinstance(key, Path)
    assert isinstance(ca, Path)
    return Tls(cert, key, ca)
