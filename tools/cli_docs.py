"""The verbs of ``dledger`` with their arguments, for docs/cli.md."""
# ruff: noqa: SLF001 - argparse has no public way to ask a parser what it takes.

from __future__ import annotations

import argparse
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from pyspark_dledger.cli.main import GROUPS, build_parser

_WIDTH = 160


def verbs() -> str:
    """Every verb with its one line of help, the exit codes, the arguments of several verbs, and those of one verb."""
    found = next(action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    takers: dict[tuple[str, str], list[str]] = {}
    for name, verb in found.choices.items():
        for action in filter(_is_shown, verb._actions):
            takers.setdefault((_spelling(action), _help(action)), []).append(name)
    own = {name: [argument for argument, names in takers.items() if names == [name]] for name in found.choices}
    parts = []
    for title, names in GROUPS.items():
        rows = (f"- {f'[`{name}`](#{name})' if own[name] else f'`{name}`'}: {text}" for name, text in names.items())
        parts += [f"{title[0].upper()}{title[1:]}:", "\n".join(rows)]
    parts += ["## Exit codes", *_ends(found.choices)]
    parts += ["## Arguments of several verbs", *_shared(takers, found.choices), "## Arguments of one verb"]
    for name, arguments in own.items():
        if arguments:
            parts += [f"### {name}", _lines(arguments)]
    return "\n\n".join(parts)


def _shared(takers: Mapping[tuple[str, str], list[str]], verbs: Iterable[str]) -> Iterator[str]:
    """The arguments that mean the same to several verbs, by the verbs that take them; first those of most verbs."""
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for argument, takers_of in takers.items():
        if len(takers_of) > 1:
            groups.setdefault(tuple(takers_of), []).append(argument)
    for names, arguments in sorted(groups.items(), key=lambda group: -len(group[0])):
        others = [verb for verb in verbs if verb not in names]
        shown = f"All but {_codes(others)}" if len(others) < len(names) else _codes(names)
        yield f"{shown}:\n\n{_lines(arguments)}"


def _codes(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _lines(arguments: Iterable[tuple[str, str]]) -> str:
    """One line for each meaning."""
    spellings: dict[str, list[str]] = {}
    for spelling, meaning in arguments:
        spellings.setdefault(meaning, []).append(spelling)
    return "\n".join(_wrapped(f"- {', '.join(found)}: {meaning}", "  ") for meaning, found in spellings.items())


# What an exit code means where the help of a verb does not say otherwise.
_USUAL = {"0": ("clean", "done"), "2": ("error",), "130": ("interrupted",)}


def _ends(choices: Mapping[str, argparse.ArgumentParser]) -> Iterator[str]:
    """Exit code 1 by verb, the usual meanings of the others, unusual ones by verb, and notes on several."""
    rows: dict[str, list[str]] = {}
    unusual: dict[str, list[str]] = {}
    notes = Counter[str]()
    for name, verb in choices.items():
        text = (verb.epilog or "").removeprefix("exit codes: ").replace("%%", "%").replace("<", "\\<")
        codes, _, rest = text.partition(". ")
        meanings = dict(code.split(" ", 1) for code in re.split("; (?=[0-9])", codes))
        rows.setdefault(meanings.pop("1", "never"), []).append(name)
        for code, meaning in meanings.items():
            if not meaning.startswith(_USUAL[code]) or ":" in meaning:
                unusual.setdefault(f"{code} {meaning}", []).append(name)
        notes.update(re.split(r"(?<=[.]) (?=[A-Z])", rest))
    yield "1 means:"
    yield "\n".join(_wrapped(f"- {_codes(names)}: {meaning}", "  ") for meaning, names in rows.items())
    usual = (f"{code} {' or '.join(meanings)}" for code, meanings in _USUAL.items())
    unusual_lines = (_wrapped(f"- {_codes(names)}: {text}", "  ") for text, names in unusual.items())
    yield "\n".join((f"Other exit codes: {', '.join(usual)}; and:", "", *unusual_lines))
    yield _wrapped(" ".join(note for note, verbs in notes.items() if verbs > 1))


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


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
