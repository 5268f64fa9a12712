"""Arguments that several verbs share."""

from __future__ import annotations

import argparse

from pyspark_dledger.cli.exit_codes import CLIENT_EXITS, READ_EXITS
from pyspark_dledger.errors import OptionError

BODY_FORMS = ("text", "hex", "base64", "none")
ROW_POSITION = (
    "an index, pos=N, earliest, latest, or a store time as ISO 8601 (UTC without a zone) or epoch milliseconds"
)
OPTION = "an option of a read (docs/reading.md lists them), such as selfId=n0 or committedBound=end"

# What several paths mean.
REPLICAS = "further ones are its replicas, which prove what is committed"
EACH = "several are read one after the other"


def add_stores(parser: argparse.ArgumentParser, several: str) -> None:
    """The paths of stores, with what a read takes; `several` says what more than one path means."""
    parser.epilog = READ_EXITS
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
    parser.add_argument("--topic", metavar="TOPIC[,TOPIC]", help="only messages of these topics")
    parser.add_argument("--queue-id", dest="queueId", metavar="ID[,ID]", help="only messages of these queues")


def add_rows(parser: argparse.ArgumentParser) -> None:
    """Which rows and columns are printed, and how."""
    add_topics(parser)
    parser.add_argument("--tags", metavar="TAG[,TAG]", help="only messages with one of these tags")
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
    text = "for TLS with client certificates: PEM files of the certificate, its key, and the CA of all others"
    for name in ("cert", "key", "ca"):
        parser.add_argument(f"--tls-{name}", metavar="FILE", help=text)


def add_client(parser: argparse.ArgumentParser) -> None:
    """How to reach a running group."""
    parser.epilog = CLIENT_EXITS
    add_json(parser)
    parser.add_argument("--group", required=True, metavar="NAME", help="the group's name")
    text = "its members, or some of them, as n0-127.0.0.1:20911;n1-127.0.0.1:20912"
    parser.add_argument("--peers", required=True, metavar="ID-HOST:PORT;...", help=text)
    add_tls(parser)
    text = "timeout of one attempt in milliseconds; default 3000"
    parser.add_argument("--timeout-ms", type=natural, default=3000, metavar="MS", help=text)
    text = "how often to retry what was certainly not done; default 10"
    parser.add_argument("--max-retries", type=natural, default=10, metavar="N", help=text)


def add_member(parser: argparse.ArgumentParser) -> None:
    """Settings of every member that is started."""
    text = "a setting by its name in Java's DLedgerConfig, such as heartBeatTimeIntervalMs=500"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=text)
    text = "sync: on disk before it is acknowledged; default: sync in a group of one, else async"
    parser.add_argument("--flush", choices=("sync", "async"), help=text)
    for name, default in (("data", "1g"), ("index", "160m")):
        text = f"of a new store; default {default}"
        parser.add_argument(f"--{name}-file-size", metavar="SIZE", help=text)
    text = "with messages: how long duplicates are recognized, in milliseconds; default 604800000, 7 days"
    parser.add_argument("--producer-id-expiry-ms", type=natural, metavar="MS", help=text)
    text = "of the log on standard error"
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help=text)


def check_member(args: argparse.Namespace, serves_messages: object) -> None:
    """Raise OptionError for an argument of `add_member` that has no effect."""
    if args.producer_id_expiry_ms is not None and not serves_messages:
        raise OptionError("--producer-id-expiry-ms has no effect without messages: leave it out, or add --messages")


def natural(text: str) -> int:
    """The type of an argument that is a number, 0 or more."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"expected a number, 0 or more, found {text}")
    return int(text)
