"""``dledger lost``: which messages are lost, as far as indexes and queues know them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark_dledger.cli.arguments import add_stores
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS, not_checked
from pyspark_dledger.cli.output.rows import Row, print_table, without_empty
from pyspark_dledger.cli.output.stream import Output, note
from pyspark_dledger.cli.stores.open_stores import open_store
from pyspark_dledger.cli.stores.row_printer import print_unread
from pyspark_dledger.cli.stores.verdict_text import doubts_text, known_loss_text, lost_count, rivals_text, unclear_text
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.json_text import json_line, rows_of
from pyspark_dledger.log import Log
from pyspark_dledger.log.io.files import path_of
from pyspark_dledger.log.store_view import answer

if TYPE_CHECKING:
    from pyspark_dledger.rocketmq.lost.lost_messages import Candidates, GroupLosses, LostMessage

_READ = ("consumequeue", "index", "checkpoint")
# The columns that fit a terminal; --json has all.
_COLUMNS = (
    *("index", "pos", "size", "topic", "queueId", "queueOffset", "firstStoreTimestamp", "lastStoreTimestamp"),
    *("entries", "witnesses", "lostOn", "intactOn", "unclearOn", "restorableFrom", "committed"),
)


def add_lost(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, "several are replicas: what one has intact is not lost for good", "something is or may be lost")
    text = "a file with a key, uniqKey or tag on each line: names those whose hash a lost message has"
    parser.add_argument("--candidates", metavar="FILE", help=text)


def run_lost(args: argparse.Namespace, out: Output) -> int:
    """Print each lost message; `FINDINGS` if there is one, or a file cannot be read."""
    return answer(open_store(args, "table lost", leave_out=True), lambda log: _lost(args, out, log))


def _lost(args: argparse.Namespace, out: Output, log: Log) -> int:
    from pyspark_dledger.rocketmq.lost.lost_messages import Candidates, before_first_file, lost_in_group

    logs: list[Log] = [log, *log.replicas]
    names = Candidates(_lines(args.candidates), logs) if args.candidates is not None else None
    losses = lost_in_group(log, out.progress)
    found, unclear = losses.messages, [*_unclear(losses), *_known(logs)]
    unread = [line for each in logs for line in each.unread.lines("what else is lost", _READ)]
    if unread:
        unclear.append("cannot tell more: some files cannot be read")
    out.progress.clear()
    rows = _rows(found, names)
    if args.json:
        for row in rows:
            out.line(json_line(row))
        for text in unclear:
            note(text)
    else:
        _print_text(out, rows, found, len(logs), unclear)
    print_unread(out, unread, args.json)
    for each in logs:
        if (before := before_first_file(each)) is not None:
            note(f"{each.path}: {before}")
    if not args.json:
        out.line(not_checked("lost"))
    return FINDINGS if found or unclear else CLEAN


def _unclear(losses: GroupLosses) -> list[str]:
    """What no check judges, and what is lost at unknown positions."""
    entries, positions = losses.unclear, losses.unclear_positions
    texts = [unclear_text(entries, losses.unclear_reasons)] if entries.entries else []
    texts += [unclear_text(positions, losses.unclear_reasons, "positions")] if positions.entries else []
    return [*texts, *(each.text for each in losses.lost_ends), *rivals_text(sorted(losses.rivals))]


def _known(logs: list[Log]) -> Iterator[str]:
    """What the salvages that wrote stores lost at the ends of their logs, and did not know, as `check` says it, too."""
    from pyspark_dledger.log.diff.salvage_doubts import salvage_doubts
    from pyspark_dledger.log.io.store_use import KnownLoss, known_loss, losses_of_all
    from pyspark_dledger.log.replicas import replica_names

    named = dict(zip(replica_names(logs), logs, strict=True))
    ends = {
        name: KnownLoss(log.end.last_index if log.ledger_segments else -1, log.max_offset - 1)
        for name, log in named.items()
    }
    losses = losses_of_all({name: known_loss(log.path) for name, log in named.items()}, ends)
    yield from (known_loss_text(name, loss) for name, loss in losses.items())
    yield from (doubts_text(*each) for each in salvage_doubts(named.items()).items())


def _lines(file: str) -> list[str]:
    try:
        data = path_of(file).read_bytes()
    except OSError as error:
        raise OptionError(f"--candidates {file}: cannot be read ({error.strerror}): check the path") from None
    return [line for line in data.decode("utf-8", "surrogateescape").splitlines() if line]


def _rows(found: list[LostMessage], names: Candidates | None) -> list[Row]:
    from pyspark_dledger.log.tables.table import batches_of
    from pyspark_dledger.rocketmq.tables.lost_table import COLUMNS, lost_rows

    batches = batches_of(COLUMNS, lost_rows(found), max(len(found), 1))
    shown: list[Row] = [row for batch in batches for row in rows_of(batch, bytes)]
    if names is not None:
        for row, lost in zip(shown, found, strict=True):
            row["candidateKeys"], row["candidateTags"] = names.keys_of(lost), names.tags_of(lost)
    return shown


def _print_text(out: Output, rows: list[Row], found: list[LostMessage], stores: int, unclear: list[str]) -> None:
    out.lines(_summary(found, unclear) if stores > 1 else [_alone(found, unclear)])
    if rows:
        out.line("")
        more = tuple(name for name in ("candidateKeys", "candidateTags") if name in rows[0])
        print_table(out, without_empty([{name: row[name] for name in (*_COLUMNS, *more)} for row in rows]))


def _alone(found: list[LostMessage], unclear: list[str]) -> str:
    """What one store has lost: other replicas decide if it is lost for good."""
    others = ["give the paths of other replicas too: they may have it"] if found else []
    counts = [lost_count(found)] if found or not unclear else []
    return f"lost: {'; '.join([*counts, *_restorable(found), *unclear, *others])}"


def _summary(found: list[LostMessage], unclear: list[str]) -> Iterable[str]:
    """The answer: how much is lost for good, and how much a replica has."""
    for_good = [lost for lost in found if lost.is_for_good]
    parts = [lost_count(for_good)] if for_good or not unclear else []
    yield f"lost for good: {'; '.join([*parts, *_restorable(found), *unclear])}"
    if diverged := [lost for lost in found if lost.is_diverged]:
        yield f"lost of diverged tails, which the group's log does not have: {lost_count(diverged)}"
    if elsewhere := [lost for lost in found if lost.intact_on]:
        yield f"lost on some replicas and intact on others: {lost_count(elsewhere)}"


def _restorable(found: list[LostMessage]) -> list[str]:
    count = sum(bool(lost.restorable_from) for lost in found)
    return [f"only the header is damaged of {counted(count, 'message')}: dledger salvage restores it"] if count else []
