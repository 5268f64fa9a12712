"""``dledger VERB ...``: what there is to ask of a store and of a group, and the exit codes."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from pyspark_dledger import __version__
from pyspark_dledger.cli.exits import CANNOT, CLEAN, INTERRUPTED
from pyspark_dledger.cli.output.output import BODY_FORMS, Output, note
from pyspark_dledger.errors import DLedgerError

_EXITS = "exit codes: 0 clean; 1 there are findings, rows with a problem or differences, or nothing was found; "
_EXITS += "2 it cannot be done; 130 interrupted. PATH is a storePathRootDir, a dledger-<id>/ folder, a data/ or "
_EXITS += "commitlog/ folder, or one segment file; nothing in it is ever changed."

_REBUILD = "build ConsumeQueues or the index of keys anew from the log"
_REBUILD_DOES = "Build ConsumeQueues or the index of keys anew from the log, and put them in the place of the old "
_REBUILD_DOES += "ones, which are kept beside; the log itself is only read"
_REBUILD_EXITS = "exit codes: 0 done, or with --dry-run nothing would change; 1 with --dry-run something would; 2 it "
_REBUILD_EXITS += "cannot be done; 130 interrupted: what was there is in place, until everything is built"

_LIVE_EXITS = "exit codes: 0 done, or ended by SIGTERM; 2 it cannot be done; 130 interrupted"

_CLIENT_EXITS = (
    "exit codes: 0 done; 1 nothing was found, or an outcome is unknown: it may have been done, and may be yet; "
)
_CLIENT_EXITS += "2 it cannot be done, and nothing of it was, beside what was printed; 130 interrupted"

_EXPORT = "a log as a store for a broker without DLedger, as Parquet, or as JSON lines"
_EXPORT_EXITS = "exit codes: 0 done; 1 done, but something was left out, rows have a problem, or there is none; "
_EXPORT_EXITS += "2 it cannot be done; 130 interrupted. What was interrupted goes on when the same command is run "
_EXPORT_EXITS += "again. PATH is as with the other verbs, and never changed."

_PLACES = "an index, pos=N, earliest, latest, or a store time as ISO 8601 (UTC without a zone) or epoch milliseconds"
_REPLICAS = "the first is read; further ones are its replicas, which prove what is committed"
_REPORT = "one self-contained HTML page of what is asked of a store first"
_EACH = "each in turn"
_COMPARED = "all are compared; of one folder, its nodes"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, of this process if no arguments are given; returns the exit code."""
    if arguments is None:
        sys.meta_path.insert(0, _NoPandas)
        warnings.formatwarning = _one_line
    out = Output()
    try:
        given = _parser().parse_args(arguments)
        _set_encodings(given.json)
        code = _verb(given.run)(given, out)
        out.flush()
        return code
    except DLedgerError as error:
        return _cannot(out, str(error))
    except BrokenPipeError:
        # Whoever read the output has seen enough.
        _abandon_output()
        return CLEAN
    except OSError as error:
        return _cannot(out, f"{error.filename or 'the output'}: {error.strerror or error}")
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt, OSError):
            out.flush()
        _abandon_output()
        return INTERRUPTED
    finally:
        out.progress.clear()


class _NoPandas:
    """Keeps pyarrow from loading pandas to know its objects, if it is installed: none come here, and it takes 0.3 s."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the command line goes without pandas", name=name)


def _verb(name: str) -> Callable[[argparse.Namespace, Output], int]:
    """A verb's function, ``module.function`` of this room: only the module that is used is loaded."""
    module, function = name.rsplit(".", 1)
    found: Callable[[argparse.Namespace, Output], int] = getattr(
        import_module(f"pyspark_dledger.cli.{module}"), function
    )
    return found


def _cannot(out: Output, text: str) -> int:
    """What was found up to now, and then why it ends."""
    with suppress(OSError):
        out.flush()
    note(text)
    return CANNOT


def _abandon_output() -> None:
    """Lets nothing be written to standard output at exit, where it could fail or wait."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _set_encodings(as_json: bool) -> None:
    """JSON is UTF-8 whatever the locale says, and no character of a store can fail to be printed."""
    for stream, encoding in ((sys.stdout, "utf-8" if as_json else None), (sys.stderr, None)):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding=encoding, errors="backslashreplace")


def _one_line(message: Warning | str, *_: object, **_named: object) -> str:
    return f"dledger: {message}\n"


class _Parser(argparse.ArgumentParser):
    """Errors are one line, as all others."""

    def error(self, message: str) -> NoReturn:
        self.exit(CANNOT, f"dledger: {message}: see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="dledger",
        description="Look into DLedger logs and RocketMQ stores, read-only; run replicated logs, and use them.",
        epilog=_EXITS,
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def add(name: str, run: str, text: str, paths: str, more: str = "") -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, help=text, description=f"Print {text}. {more}", epilog=_EXITS)
        verb.set_defaults(run=run)
        verb.add_argument("path", nargs="+", metavar="PATH", help=f"a store; of several, {paths}")
        verb.add_argument("--json", action="store_true", help="one JSON object a line")
        text = "an option of a read (docs/reading.md lists them), such as selfId=n0 or committedBound=end"
        verb.add_argument("--option", "-o", action="append", default=[], metavar="NAME=VALUE", help=text)
        return verb

    _add_dump(add("dump", "output.row_printer.dump", "the rows of the log, or of another table", _REPLICAS))
    add("segments", "tables.segments", "the files of the log, and what every byte of them is", _EACH)
    add("state", "tables.state", "what a store is and where it stands", "side by side")
    add("stats", "stats.stats", "messages, bytes, rates, sizes and latencies by topic, and entries by term", _EACH)
    _add_verify(add("verify", "checks.verify", "what is wrong with a store, and what Java does about it", _EACH))
    _add_recovery(
        add("recovery", "checks.recovery", "what Java would do on opening the store, version by version", _EACH)
    )
    _add_diff(add("diff", "checks.diff", "where replicas differ, and what a majority has", _COMPARED))
    add("audit", "tables.audit", "where log and ConsumeQueue contradict each other", _EACH)
    add("consumers", "tables.consumers", "how far consumer groups are behind", _EACH)
    _add_find(add("find", "find.find", "the rows with an id, a key, an index or a time", _REPLICAS))
    _add_follow(add("follow", "follow.follow", "rows as they are committed, until it is interrupted", _REPLICAS))
    _add_export(verbs.add_parser("export", help=_EXPORT, description=f"Export {_EXPORT}.", epilog=_EXPORT_EXITS))
    _add_report(verbs.add_parser("report", help=_REPORT, description=f"Write {_REPORT}.", epilog=_EXITS))

    _add_rebuild(verbs.add_parser("rebuild", help=_REBUILD, description=f"{_REBUILD_DOES}.", epilog=_REBUILD_EXITS))

    def add_live(name: str, run: str, text: str, exits: str = _LIVE_EXITS) -> argparse.ArgumentParser:
        """A verb that is about a running group, not about a path."""
        verb = verbs.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", epilog=exits)
        verb.set_defaults(run=run)
        verb.add_argument("--json", action="store_true", help="one JSON object a line")
        return verb

    _add_serve(add_live("serve", "serve.serve", "run one member of a group, until SIGTERM or Ctrl-C"))
    _add_cluster(
        add_live("cluster", "cluster.cluster", "run a whole group on this machine, for trying out, until Ctrl-C")
    )

    def add_client(name: str, text: str) -> argparse.ArgumentParser:
        """A verb that asks a running group."""
        verb = add_live(name, f"group.{name}", text, _CLIENT_EXITS)
        _add_client(verb)
        return verb

    _add_append(add_client("append", "append entries, and print where each stands when it is committed"))
    _add_get(add_client("get", "print one committed entry"))
    add_client("metadata", "print who leads, and how each member stands")
    text = "the member that is to lead"
    add_client("transfer", "make a member the leader").add_argument("--to", required=True, metavar="ID", help=text)
    return parser


def _add_rows(verb: argparse.ArgumentParser) -> None:
    """What all verbs have that print rows of the log."""
    verb.add_argument("--topic", metavar="TOPIC[,TOPIC]", help="only messages of these topics")
    verb.add_argument("--queue-id", dest="queueId", metavar="ID[,ID]", help="only messages of these queues")
    verb.add_argument("--tags", metavar="TAG[,TAG]", help="only messages with one of these tags")
    verb.add_argument("--columns", metavar="NAME[,NAME]", help="default: those that fit a line, with --json all")
    text = "bodies as text (what is not UTF-8 as backslash escapes), hex, base64 (the default with --json), or none"
    verb.add_argument("--body", choices=BODY_FORMS, help=text)
    text = "for sharing: bodies, keys, properties, tags, topics, hosts, ids and CRCs become redacted:DIGEST:LENGTH. "
    text += "Digests differ from run to run. Positions, sizes, times, flags and RocketMQ's own property names stay"
    verb.add_argument("--redact", action="store_true", help=text)
    verb.add_argument("--keep", metavar="NAME[,NAME]", help="with --redact: columns that stay, such as topic,tags")


def _add_dump(verb: argparse.ArgumentParser) -> None:
    _add_rows(verb)
    text = "log (the default), segments, state, findings, indexUnits, consumeQueue, indexFile, audit, consumers, diff"
    verb.add_argument("--table", metavar="NAME", help=text)
    verb.add_argument("--from", dest="starting", metavar="PLACE", help=f"the first row at or after {_PLACES}")
    verb.add_argument("--to", dest="ending", metavar="PLACE", help="where the rows end, exclusive")
    verb.add_argument("--limit", type=_count, metavar="N", help="print at most so many rows")


def _add_verify(verb: argparse.ArgumentParser) -> None:
    text = "the least severity to print; the exit code is 1 for warnings and errors, printed or not"
    verb.add_argument("--least", choices=("info", "warning", "error"), default="info", help=text)


def _add_recovery(verb: argparse.ArgumentParser) -> None:
    version = verb.add_mutually_exclusive_group()
    text = "of DLedger, such as 0.3.1.2; default: every line of versions"
    version.add_argument("--java", metavar="VERSION", help=text)
    version.add_argument("--rocketmq", metavar="VERSION", help="of the broker, such as 5.3.3, with its own recovery")
    for name in ("data", "index"):
        text = f"that Java is configured with for {name} files, such as 160m; default: what they have"
        verb.add_argument(f"--{name}-file-size", type=_file_size, metavar="SIZE", help=text)


def _add_diff(verb: argparse.ArgumentParser) -> None:
    text = "print the MD5 of each segment's bytes instead, of the part that the replicas share and of whole files"
    verb.add_argument("--md5", action="store_true", help=text)


def _add_find(verb: argparse.ArgumentParser) -> None:
    _add_rows(verb)
    text = "an offsetMsgId, a uniqKey (the client's msgId), a key, an index, or a time (the first message at or after "
    text += "it). An offsetMsgId and an index are read at once, the others walk the log"
    verb.add_argument("what", metavar="WHAT", help=text)
    text = "what WHAT is; default: by its form, a number of 13 digits being a time, a shorter one an index"
    verb.add_argument("--by", choices=("offsetMsgId", "uniqKey", "key", "index", "time"), help=text)


def _add_follow(verb: argparse.ArgumentParser) -> None:
    _add_rows(verb)
    verb.add_argument("--from", dest="starting", metavar="PLACE", help=f"{_PLACES}; default: latest")
    verb.add_argument("--uncommitted", action="store_true", help="to the end of the log, which can be truncated again")
    text = "seconds between two looks at the store; default 1"
    verb.add_argument("--interval", type=_seconds, default=1.0, metavar="SECONDS", help=text)


def _add_report(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(run="report.report")
    text = "the store, and its replicas to compare it with"
    verb.add_argument("path", nargs="+", metavar="STORE", help=text)
    text = "the file to write, outside the store, over nothing but an earlier report; - is standard output"
    result = verb.add_mutually_exclusive_group(required=True)
    result.add_argument("--output", "-o", metavar="FILE", help=text)
    result.add_argument("--json", action="store_true", help="print what the page says as one JSON object instead")
    text = "for sharing: paths, topics, groups and what findings quote become redacted:DIGEST:LENGTH"
    verb.add_argument("--redact", action="store_true", help=text)
    text = "an option of a read (docs/reading.md lists them), such as selfId=n0 or committedBound=end"
    verb.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help=text)


def _add_export(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(run="export.export")
    verb.add_argument("path", metavar="PATH", help="a store")
    text = "a new or empty folder, or one with an unfinished export of the same"
    verb.add_argument("target", metavar="TARGET", help=text)
    text = "commitlog (a storePathRootDir for a plain broker), parquet (by topic and day) or jsonl"
    verb.add_argument("--to", metavar="FORM", help=text)
    verb.add_argument("--topic", metavar="TOPIC[,TOPIC]", help="only messages of these topics")
    verb.add_argument("--queue-id", dest="queueId", metavar="ID[,ID]", help="only messages of these queues")
    verb.add_argument("--columns", metavar="NAME[,NAME]", help="parquet, jsonl: columns of the log table; default: all")
    text = "parquet (default zstd), jsonl (default none): none, gzip or zstd"
    verb.add_argument("--compression", metavar="NAME", help=text)
    text = "commitlog: physical offsets stay as far as that can be, with filler between the messages"
    verb.add_argument("--preserve-offsets", dest="preserveOffsets", action="store_const", const="true", help=text)
    text = "commitlog: without consumequeue/ and index/, which the broker builds at its first start"
    verb.add_argument("--commitlog-only", dest="commitLogOnly", action="store_const", const="true", help=text)
    text = "write the parts in tasks of Spark, at a master such as local[4] or spark://HOST:7077"
    verb.add_argument("--spark", metavar="MASTER", help=text)
    verb.add_argument("--json", action="store_true", help="the report as one JSON object")
    text = "an option of a read (docs/reading.md lists them) or of an export, such as isolationLevel=read_committed"
    verb.add_argument("--option", "-o", action="append", default=[], metavar="NAME=VALUE", help=text)


def _add_rebuild(verb: argparse.ArgumentParser) -> None:
    verb.set_defaults(run="rebuild.rebuild")
    verb.add_argument("what", choices=("consumequeue", "index"), help="what to build")
    verb.add_argument("path", metavar="PATH", help="the store: a storePathRootDir that no broker has open")
    text = "print what would change, and write nothing; with --json each queue, or index file, a line"
    verb.add_argument("--dry-run", action="store_true", help=text)
    text = "an empty folder, or none: build there, and leave the store alone"
    verb.add_argument("--out", metavar="DIR", help=text)
    text = "read the log by tasks of a Spark session at this master, such as local[4] or spark://HOST:7077"
    verb.add_argument("--spark", metavar="MASTER", help=text)
    text = "of a ConsumeQueue file; default: as the files have that are there, else 300000"
    verb.add_argument("--units-per-file", dest="unitsPerFile", metavar="N", help=text)
    text = "of an index file; default: as the files have that are there, else"
    verb.add_argument("--hash-slots", dest="hashSlots", metavar="N", help=f"{text} 5000000")
    verb.add_argument("--index-units", dest="indexUnits", metavar="N", help=f"{text} 20000000")
    text = "a broker.conf, for messageDelayLevel, and for sizes that neither a flag nor files tell"
    verb.add_argument("--broker-conf", dest="brokerConf", metavar="FILE", help=text)
    verb.add_argument("--json", action="store_true", help="one JSON object a line")
    text = "an option of a read (docs/reading.md lists them) that chooses a store or what is committed, such as "
    text += "selfId=n0 or committedBound=end"
    verb.add_argument("--option", "-o", action="append", default=[], metavar="NAME=VALUE", help=text)


def _add_serve(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--group", metavar="NAME", help="the group's name")
    verb.add_argument("--id", metavar="ID", help="this member's id, such as n0")
    text = "all members with their addresses, as n0-127.0.0.1:20911;n1-127.0.0.1:20912"
    verb.add_argument("--peers", metavar="ID-HOST:PORT;...", help=text)
    verb.add_argument("--store", metavar="DIR", help="where dledger-ID/ stands, and is made if it does not")
    text = "settings as key=value lines, by the names of Java's DLedgerConfig; flags go before them"
    verb.add_argument("--config", metavar="FILE", help=text)
    text = "HOST or HOST:PORT to listen at; default: the own address of --peers, if it is a loopback one"
    verb.add_argument("--listen", metavar="HOST", help=text)
    _add_tls(verb)
    text = (
        "serve messages, too, as a broker's leader; DIR is a storePathRootDir then, with consumequeue/, index/, config/"
    )
    verb.add_argument("--messages", action="store_true", help=text)
    text = "a broker.conf with enableDLegerCommitLog=true, taken as the broker takes it: with it messages are served"
    verb.add_argument("--broker-conf", metavar="FILE", help=text)
    text = "the entry of that index and all behind it are put aside first: repair of a damaged store only"
    verb.add_argument("--truncate-at", type=_natural, metavar="INDEX", help=text)
    # What `cluster` starts ends with it, however that ends.
    verb.add_argument("--until-input-ends", action="store_true", help=argparse.SUPPRESS)
    _add_node(verb)


def _add_cluster(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--nodes", type=_members, default=3, metavar="N", help="how many members; default 3")
    text = "where their stores dledger-n0/, dledger-n1/, ... and logs n0.log, n1.log, ... stand"
    verb.add_argument("--store", required=True, metavar="DIR", help=text)
    text = "the first member's port on 127.0.0.1, the others have the next ones; default 20911"
    verb.add_argument("--base-port", type=_natural, default=20911, metavar="PORT", help=text)
    verb.add_argument("--group", default="g", metavar="NAME", help="the group's name; default g")
    text = "serve messages, too: each member in a folder of its own, n0/, n1/, ..., which is a storePathRootDir"
    verb.add_argument("--messages", action="store_true", help=text)
    _add_node(verb)


def _add_node(verb: argparse.ArgumentParser) -> None:
    """What each member is told."""
    text = "a setting by the name that Java's DLedgerConfig has for it, such as heartBeatTimeIntervalMs=500"
    verb.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=text)
    text = "sync: on disk before it is acknowledged; default: sync in a group of one, else async"
    verb.add_argument("--flush", choices=("sync", "async"), help=text)
    for name, default in (("data", "1g"), ("index", "160m")):
        text = f"of a new store; default {default}"
        verb.add_argument(f"--{name}-file-size", metavar="SIZE", help=text)
    text = "with messages: how long one that comes again is known, in milliseconds; default 604800000, 7 days"
    verb.add_argument("--producer-id-expiry-ms", type=_natural, metavar="MS", help=text)
    verb.add_argument("--log-format", choices=("text", "json"), default="text", help="of the log on standard error")


def _add_tls(verb: argparse.ArgumentParser) -> None:
    text = "for TLS with client certificates: PEM files of the certificate, its key, and the authority of all others"
    for name in ("cert", "key", "ca"):
        verb.add_argument(f"--tls-{name}", metavar="FILE", help=text)


def _add_client(verb: argparse.ArgumentParser) -> None:
    """What all verbs have that ask a running group."""
    verb.add_argument("--group", required=True, metavar="NAME", help="the group's name")
    text = "its members, or some of them, as n0-127.0.0.1:20911;n1-127.0.0.1:20912"
    verb.add_argument("--peers", required=True, metavar="ID-HOST:PORT;...", help=text)
    _add_tls(verb)
    text = "how long one attempt may last, in milliseconds; default 3000"
    verb.add_argument("--timeout-ms", type=_natural, default=3000, metavar="MS", help=text)
    text = "how often to try again what was certainly not done; default 10"
    verb.add_argument("--max-retries", type=_natural, default=10, metavar="N", help=text)


def _add_append(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("bodies", nargs="*", metavar="BODY", help="the body of an entry")
    text = "its bytes are the body of an entry, behind those of the command line; - is standard input"
    verb.add_argument("--file", metavar="FILE", help=text)
    verb.add_argument("--lines", action="store_true", help="each line of the file is an entry, without its line end")


def _add_get(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--index", type=_natural, required=True, metavar="N", help="the entry's index")
    text = "the body as text (what is not UTF-8 as backslash escapes), hex, base64 (the default with --json), or none"
    verb.add_argument("--body", choices=BODY_FORMS, help=text)


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise argparse.ArgumentTypeError(f"expected a number, 0 or more, found {text}")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a number of rows, found {text}")
    return int(text)


def _members(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and int(text) > 0):
        raise argparse.ArgumentTypeError(f"expected a number of members, 1 or more, found {text}")
    return int(text)


def _file_size(text: str) -> int:
    from pyspark_dledger.common.options import parse_size

    try:
        return parse_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a size such as 65536, 64k or 1g, found {text}") from None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise argparse.ArgumentTypeError(f"expected seconds from 0 to 86400, found {text}")
    return seconds
