"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark_dledger.cli.exit_codes import CLIENT_EXITS, read_exits
from pyspark_dledger.errors import OptionError

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.jobs import MapParts

BODY_FORMS = ("text", "hex", "base64", "none")
ROW_POSITION = (
    "an index, pos=N, earliest, latest, or a store time as ISO 8601 (UTC without a zone) or epoch milliseconds"
)
# The options that a position sets.
STARTING = ("startingOffsets", "startingTimestamp")
ENDING = ("endingOffsets", "endingTimestamp")
OPTION = "an option of a read (docs/reading.md lists them), such as selfId=n0 or committedBound=end"

# What several paths mean.
REPLICAS = "further ones are its replicas, which prove what is committed"
EACH = "several are read one after the other"


def add_flag(parser: argparse.ArgumentParser, flag: str, *options: str, **settings: Any) -> None:
    """Adds an argument that sets one of `options`. Errors about these options name the flag: see `with_flags`."""
    action = parser.add_argument(flag, **settings)
    declared = parser.get_default("flags") or {}
    parser.set_defaults(flags={**declared, **dict.fromkeys(options, (flag, action.dest))})


@contextmanager
def parts_at(master: str | None) -> Iterator[MapParts]:
    """Where the parts of a job are done: in this process, or in a Spark session at a master, which ends with it."""
    if master is None:
        from pyspark_dledger.rocketmq.jobs import map_here

        yield map_here
        return
    from pyspark_dledger.spark.tasks import map_on, session_at

    with session_at(master) as spark:
        yield map_on(spark)


def with_flags(text: str, args: argparse.Namespace) -> str:
    """An error text with flags instead of the names of their options, except options given with ``--option``."""
    named = {given.partition("=")[0].lower() for given in getattr(args, "option", ())}
    for option, (flag, _) in getattr(args, "flags", {}).items():
        if option.lower() not in named:
            text = re.sub(rf"^{option}(?=:)|\boption {option}\b", flag, text)
    return text


def add_stores(parser: argparse.ArgumentParser, several: str, findings: str | None) -> None:
    """The paths of stores, with what a read takes.

    `several` says what more than one path means, `findings` when the exit code is 1 (None: never).
    """
    parser.epilog = read_exits(findings)
    parser.add_argument("path", nargs="+", metavar="PATH", help=f"a store; {several}")
    add_json(parser)
    add_option(parser)


def add_json(parser: argparse.ArgumentParser, text: str = "one JSON object a line") -> None:
    parser.add_argument("--json", action="store_true", help=text)


def add_option(
    parser: argparse.ArgumentParser, text: str = OPTION, names: tuple[str, ...] = ("--option", "-o")
) -> None:
    parser.add_argument(*names, action="append", default=[], metavar="NAME=VALUE", help=text)


def add_topics(parser: argparse.ArgumentParser) -> None:
    """Which messages of the log are wanted."""
    add_flag(parser, "--topic", "topic", metavar="TOPIC[,TOPIC]", help="only messages of these topics")
    text = "only messages of these queues"
    add_flag(parser, "--queue-id", "queueId", dest="queueId", metavar="ID[,ID]", help=text)


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Which rows and columns are printed, and how."""
    add_topics(parser)
    add_flag(parser, "--tags", "tags", metavar="TAG[,TAG]", help="only messages with one of these tags")
    text = "default: those that fit a line, with --json all"
    parser.add_argument("--columns", metavar="NAME[,NAME]", help=text)
    add_body(parser, "bodies")
    text = "for sharing: bodies, keys, properties, tags, topics, hosts, ids and CRCs become redacted:DIGEST:LENGTH. "
    text += "Digests differ from run to run. Positions, sizes, times, flags and RocketMQ's own property names stay"
    parser.add_argument("--redact", action="store_true", help=text)
    text = "with --redact: columns that stay, such as topic,tags"
    parser.add_argument("--keep", metavar="NAME[,NAME]", help=text)


def add_body(parser: argparse.ArgumentParser, what: str) -> None:
    text = f"{what} as text (bytes that are not UTF-8 as backslash escapes), hex, base64 (the default with --json), "
    parser.add_argument("--body", choices=BODY_FORMS, help=f"{text}or none")


def add_tls(parser: argparse.ArgumentParser) -> None:
    text = "for TLS: PEM files of the certificate, its key, and the CA of all"
    for name in ("cert", "key", "ca"):
        add_flag(parser, f"--tls-{name}", f"tls{name.title()}", f"tls {name}", metavar="FILE", help=text)


def add_secret(parser: argparse.ArgumentParser, text: str) -> None:
    add_flag(parser, "--secret-file", "secretFile", metavar="FILE", help=f"file with {text}")


def add_client(parser: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    """How to reach a running group."""
    parser.epilog = CLIENT_EXITS
    add_json(parser)
    add_flag(parser, "--group", "group", required=is_required, metavar="NAME", help="the group's name")
    text = "its members, or some of them, as n0-127.0.0.1:20911;n1-127.0.0.1:20912"
    add_flag(parser, "--peers", "peers", required=is_required, metavar="ID-HOST:PORT;...", help=text)
    add_tls(parser)
    add_secret(parser, "the secret of clients")
    text = "timeout of one attempt in milliseconds; default 3000"
    add_flag(parser, "--timeout-ms", "timeout_ms", type=natural, default=3000, metavar="MS", help=text)
    text = "how often to retry what was certainly not done; default 10"
    add_flag(parser, "--max-retries", "max_retries", type=natural, default=10, metavar="N", help=text)


def add_member(parser: argparse.ArgumentParser) -> None:
    """Settings of every member that is started."""
    text = "a setting by its name in Java's DLedgerConfig, such as heartBeatTimeIntervalMs=500"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=text)
    text = "sync: on disk before it is acknowledged; default: sync in a group of one, else async"
    add_flag(parser, "--flush", "flush", choices=("sync", "async"), help=text)
    for name, default in (("data", "1g"), ("index", "160m")):
        text, setting = f"of a new store; default {default}", f"mappedFileSizeForEntry{name.title()}"
        add_flag(parser, f"--{name}-file-size", setting, metavar="SIZE", help=text)
    text = "with messages: how long duplicates are recognized; default 604800000, 7 days"
    add_flag(parser, "--producer-id-expiry-ms", "producerIdExpiryMs", type=natural, metavar="MS", help=text)
    text = "of the log on standard error"
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help=text)


def check_member(args: argparse.Namespace, serves_messages: object) -> None:
    """Raise OptionError for an argument of `add_member` that has no effect."""
    if args.producer_id_expiry_ms is not None and not serves_messages:
        raise OptionError("--producer-id-expiry-ms has no effect without messages: leave it out, or add --messages")


def given_without(args: argparse.Namespace, flag: str, *texts: str) -> list[str]:
    """The arguments after the verb as the user gave them, without a flag, what abbreviates it, and other texts."""
    given = [text for text in args.given[1:] if text not in texts]
    return [text for text in given if not (len(text) > 2 and flag.startswith(text))]


def natural(text: str) -> int:
    """The type of an argument that is a number, 0 or more."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"expected a number, 0 or more, found {text}")
    return int(text)
