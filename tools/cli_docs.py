"""The verbs of ``dledger`` with their arguments, for docs/cli.md."""
# ruff: noqa: SLF001 - argparse has no public way to ask a parser what it takes.

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping

from pyspark_dledger.cli.main import _parser

Table = Callable[[tuple[str, ...], Iterable[tuple[str, ...]]], str]


def verbs(table: Table) -> str:
    """Every verb with its one line of help, how they end, and then the arguments of each."""
    found = next(action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    rows = ((f"[`{action.dest}`](#{action.dest})", _help(action)) for action in found._choices_actions)
    parts = [table(("verb", "prints or does"), rows), *_ends(found.choices)]
    for name, verb in found.choices.items():
        arguments = ((_spelling(action), _help(action)) for action in verb._actions if _is_shown(action))
        parts.append(f"### {name}\n\n{table(('argument', 'meaning'), arguments)}")
    return "\n\n".join(parts)


def _ends(choices: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    """The exit codes, with the verbs that have them."""
    named: dict[str, list[str]] = {}
    for name, verb in choices.items():
        named.setdefault((verb.epilog or "").replace("%%", "%").replace("<", "\\<"), []).append(f"`{name}`")
    for text, names in named.items():
        yield f"{', '.join(names)}: {text}"


def _is_shown(action: argparse.Action) -> bool:
    return action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)


def _help(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%")


def _spelling(action: argparse.Action) -> str:
    """How an argument is spelled: ``--flag VALUE``, or the name of one that goes without a flag."""
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest)
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(f"`{name}`" if action.nargs == 0 else f"`{name} {value}`" for name in action.option_strings)
