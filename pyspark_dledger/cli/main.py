"""``dledger VERB ...``: runs one verb and turns errors into exit codes."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn

from pyspark_dledger.cli.arguments import with_flags
from pyspark_dledger.cli.exit_codes import CLEAN, ERROR, INTERRUPTED, READ_EXITS
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.errors import DLedgerError
from pyspark_dledger.format.json_text import printable

GROUPS = {
    "look": {
        "check": "print what is wrong, what is lost, who may start, and the next command: begin here",
        "state": "print what a store is and how far its log goes",
        "verify": "print what is wrong with a store and what Java does about it",
        "diff": "print where replicas differ and what a majority has",
        "recovery": "print what each version of Java would do on opening the store",
        "lost": "print which messages are lost, as far as indexes and queues know them",
        "audit": "print where log and ConsumeQueue contradict each other",
        "consumers": "print how far consumer groups lag",
        "find": "print the rows with an id, a key, an index or a time",
        "trace": "print the life of a message: stored, delayed, delivered, retried, consumed",
        "dump": "print rows of the log or of another table",
        "segments": "print the log's files and what their bytes are",
        "stats": "print counts, sizes, rates and latencies by topic, and entries by term",
        "sql": "print the rows of an SQL query of the log and the other tables; needs DuckDB",
        "follow": "print rows as they are committed, until interrupted",
        "report": "write one self-contained HTML page about a store",
    },
    "repair": {
        "salvage": "write one intact store from damaged replicas",
        "rebuild": "rebuild ConsumeQueues or the index of keys from the log",
    },
    "move": {
        "export": "write a log as a store for a broker without DLedger, as Parquet, as JSON lines or to a table",
        "migrate": "write the stores of brokers without DLedger from a DLedger group: controller mode, or slaves",
        "replay": "send messages of a log to a running cluster",
        "backup": "copy what a member has committed, while it runs",
        "restore": "write the store of a member from a backup",
    },
    "run a group": {
        "serve": "run one member of a group, until SIGTERM or Ctrl-C",
        "cluster": "run a whole group on this machine, for trying out, until Ctrl-C",
        "append": "append entries and print where each is committed",
        "get": "print one committed entry",
        "metadata": "print the leader and the state of each member",
        "transfer": "make a member the leader",
        "member": "print the members of a group, or add, remove or replace one",
    },
}
"""Every verb and its line of help, by what it is for."""
VERBS = {name: text for verbs in GROUPS.values() for name, text in verbs.items()}
MODULES = {
    "tables": ("state", "segments", "consumers", "audit", "dump", "stats"),
    "backups": ("backup", "restore"),
    "members": ("serve", "cluster"),
    "running_group": ("append", "get", "metadata", "transfer", "member"),
}
"""The modules in `verbs/` of several verbs. Another verb has a module of its name."""

# Verbs less similar than this are not suggested.
_VERB_SIMILARITY = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line `arguments`, by default this process's; returns the exit code."""
    if arguments is None:
        sys.meta_path.insert(0, _NoPandas)
        warnings.formatwarning = _one_line
        arguments = sys.argv[1:]
    out = Output()
    args = argparse.Namespace()
    try:
        args = _parsed(arguments)
        _set_encodings(args.json)
        code: int = args.run(args, out)
        out.flush()
        return code
    except DLedgerError as error:
        return _fail(out, with_flags(str(error), args))
    except AttributeError as error:
        if getattr(error.obj, "__name__", "") != "pyspark_dledger._native":
            raise
        return _fail(out, f"the native module is older than the Python sources ({error}): run make setup, or reinstall")
    except BrokenPipeError:
        # The reader of the output, such as head, has seen enough.
        _abandon_output()
        return CLEAN
    except OSError as error:
        return _fail(out, f"{error.filename or 'the output'}: {error.strerror or error}")
    except KeyboardInterrupt:
        with suppress(KeyboardInterrupt, OSError):
            out.flush()
        _abandon_output()
        return INTERRUPTED
    finally:
        out.progress.clear()


def build_parser(verbs: Iterable[str] = VERBS, *, with_arguments: bool = True) -> argparse.ArgumentParser:
    """The parser of `verbs`. Without their arguments it imports no module, and can only print what verbs there are."""
    parser = _GroupedParser(
        prog="dledger",
        description="Inspect DLedger logs and RocketMQ stores, read-only. Run replicated logs and use them.",
        epilog=READ_EXITS,
    )
    parser.add_argument("--version", action=_ShowVersions, nargs=0, help="print the versions that a bug report needs")
    parsers = parser.add_subparsers(required=True, metavar="VERB", parser_class=_Parser)
    for name in verbs:
        text = VERBS[name]
        verb = parsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if with_arguments:
            place = next((module for module, names in MODULES.items() if name in names), name)
            module = import_module(f"pyspark_dledger.cli.verbs.{place}")
            getattr(module, f"add_{name}")(verb)
            verb.set_defaults(run=getattr(module, f"run_{name}"))
    return parser


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The parsed arguments. Raises SystemExit after a help text or an error."""
    verb = arguments[0] if arguments else ""
    parser = build_parser([verb]) if verb in VERBS else build_parser(with_arguments=False)
    if verb and verb not in VERBS and not verb.startswith("-"):
        from pyspark_dledger.common.options import similar

        near = similar(verb, VERBS, _VERB_SIMILARITY)
        nearest = f"nearest: {near}; " if near else ""
        parser.exit(ERROR, f"dledger: no verb {verb!r}; {nearest}dledger --help lists them\n")
    return parser.parse_args(arguments, argparse.Namespace(given=tuple(arguments)))


class _NoPandas:
    """An import hook that hides pandas from pyarrow, which would load it for 0.3 s; no verb needs it."""

    @staticmethod
    def find_spec(name: str, _path: object = None, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the command line does not use pandas", name=name)


def _fail(out: Output, text: str) -> int:
    """Prints what was found before the error, then the error."""
    with suppress(OSError):
        out.flush()
    note(text)
    return ERROR


def _abandon_output() -> None:
    """Redirects standard output, so that nothing written at exit can fail or wait."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _set_encodings(as_json: bool) -> None:
    """JSON is UTF-8 in every locale, and no character of a store can fail to print."""
    for stream, encoding in ((sys.stdout, "utf-8" if as_json else None), (sys.stderr, None)):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding=encoding, errors="backslashreplace")


def _one_line(message: Warning | str, *_: object, **_named: object) -> str:
    return f"dledger: {printable(str(message))}\n"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(ERROR, f"dledger: {printable(message)}: see {self.prog} --help\n")


class _ShowVersions(argparse.Action):
    """Prints the versions and ends the program. Finding them loads Arrow and Spark."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from pyspark_dledger.cli.versions import versions

        sys.stdout.write(versions())
        parser.exit()


class _GroupedParser(_Parser):
    """The parser of the command itself, whose help lists the verbs by `GROUPS`."""

    def format_help(self) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, verbs in GROUPS.items():
            formatter.start_section(title)
            formatter.add_arguments(argparse.Action([], name, metavar=name, help=text) for name, text in verbs.items())
            formatter.end_section()
        formatter.start_section("options")
        formatter.add_arguments(action for action in self._actions if action.option_strings)
        formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()
