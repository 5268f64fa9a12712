"""``dledger find``: one message or entry, by what is known of it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pyspark_dledger.cli.arguments import REPLICAS, add_rows, add_stores
from pyspark_dledger.cli.exit_codes import CLEAN, FINDINGS
from pyspark_dledger.cli.output.stream import Output, ProgressBar, note
from pyspark_dledger.cli.stores.open_stores import MIN_EPOCH_MS, open_store
from pyspark_dledger.cli.stores.row_printer import RowPrinter, RowReader, with_progress
from pyspark_dledger.common.integers import INT64_MAX
from pyspark_dledger.common.plurals import counted
from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.json_text import printable
from pyspark_dledger.format.spec import Filters, IntFilter
from pyspark_dledger.log import Log
from pyspark_dledger.log.conditions import Lookup
from pyspark_dledger.log.io.entry_reads import entry_at, segment_at
from pyspark_dledger.log.options import FIND, option_filters, parse_options
from pyspark_dledger.log.plan import plan_read, read_known
from pyspark_dledger.log.store_view import RowRange, answer
from pyspark_dledger.rocketmq.lives.message_names import OFFSET_MSG_ID, QUEUE_OFFSET

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_dledger.rocketmq.lost.known_units import Pointer

# Both ids are the hex digits of 16 bytes, of 28 with IPv6 addresses; the port of an offsetMsgId takes two of its four.
_ID = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?")


def add_find(parser: argparse.ArgumentParser) -> None:
    add_stores(parser, REPLICAS, "nothing found, something lost, a row with a problem, unreadable files")
    add_rows(parser)
    text = "an offsetMsgId, a uniqKey (the client's msgId), a key, an index, TOPIC/QUEUE/OFFSET, or a time (the first "
    text += "message at or after it). Keys walk the log, then indexes, which know lost and expired messages"
    parser.add_argument("what", metavar="WHAT", help=text)
    text = "what WHAT is; default: by its form: a number of 13 digits is a time, a shorter one an index"
    parser.add_argument("--by", choices=("offsetMsgId", "uniqKey", "key", "index", "queueOffset", "time"), help=text)


def run_find(args: argparse.Namespace, out: Output) -> int:
    """Print what is found; `FINDINGS` where there is nothing, or something is lost."""
    from pyspark_dledger.log.healed_log import HealedLog  # loads pyarrow

    codes = []
    is_shown = False
    for number in range(len(args.path)):
        # Each store has the others as its replicas.
        paths = [args.path[number], *args.path[:number], *args.path[number + 1 :]]
        log = open_store(argparse.Namespace(**{**vars(args), "path": paths}), FIND, leave_out=True)
        printer = _FindPrinter(args, out, log, is_silent=is_shown)
        codes.append(answer(log, partial(_find_in, args=args, printer=printer, progress=out.progress)))
        if len(args.path) > 1 and printer.count:
            rows = counted(printer.count, "row")
            note(f"{log.path}: found, {rows}{' with a problem' if printer.code else ', intact'}")
        if isinstance(log, HealedLog):
            break  # it has what any of the stores has
        is_shown = is_shown or (printer.count > 0 and printer.code == CLEAN)
    return max(codes)


def _find_in(log: Log, args: argparse.Namespace, printer: RowPrinter, progress: ProgressBar) -> int:
    """Print what a store has; `FINDINGS` where it has nothing, or something is lost."""
    reasons: list[str] = []
    pointers: list[Pointer] = []
    for kind in [args.by] if args.by else kinds_of(args.what):
        search = _Search(log, args.what, args.by is not None, printer, progress, pointers)
        reasons.append(_FINDERS[kind](search))
        if printer.count:
            break
    progress.clear()
    for pointer in pointers:
        note(f"{log.path}: {pointer}")
    unread = log.unread.texts(None)
    for text in unread:
        note(f"{log.path}: cannot tell if there is more: {text}")
    if printer.count:
        return FINDINGS if unread or any(not pointer.is_expired for pointer in pointers) else printer.code
    note(f"{log.path}: {'; '.join(dict.fromkeys(reasons))}")
    return FINDINGS


class _FindPrinter(RowPrinter):
    """Prints rows, and says which are fillers of a salvage: what they stand for is lost."""

    def __init__(self, args: argparse.Namespace, out: Output, log: Log, is_silent: bool) -> None:
        from pyspark_dledger.log.io.salvage_fillers import SalvageFillers

        super().__init__(args, out, log, is_silent=is_silent)
        self._path, self._fillers = log.path, SalvageFillers(log.paths)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*super().columns, "kind", "topic")))

    def print(self, batch: pa.RecordBatch, limit: int | None = None) -> None:
        from pyspark_dledger.log.io.salvage_fillers import PROBLEM

        super().print(batch, limit)
        for number in self._fillers.numbers(batch.slice(0, limit)):
            self.code = FINDINGS
            note(f"{self._path}: pos {batch['pos'][number].as_py()}: {PROBLEM}")


def kinds_of(what: str) -> list[str]:
    """What an argument can be by its form, the one that is found fastest first."""
    if what.isdecimal():
        return ["index" if int(what) < MIN_EPOCH_MS else "time"]
    if _TIME.fullmatch(what):
        return ["time"]
    if QUEUE_OFFSET.fullmatch(what):
        return ["queueOffset", "key"]
    return ["offsetMsgId", "key"] if OFFSET_MSG_ID.fullmatch(what) else ["key"]


class _Search(NamedTuple):
    log: Log
    what: str
    is_chosen: bool
    """Whether ``--by`` says what `what` is."""
    printer: RowPrinter
    progress: ProgressBar
    pointers: list[Pointer]
    """What indexes and queues know of messages that are not in the log, added by each kind of search."""

    def print(self, rows: RowRange) -> None:
        for batch in RowReader(self.log, self.printer.columns).between(rows.start, rows.end):
            self.printer.print(batch)


def _by_index(search: _Search) -> str:
    log, index = search.log, _number(search.what, "an index")
    if not log.ledger_segments:
        return f"expected the index {index}, found a plain CommitLog, which has none"
    pos = log.position_of(index)
    segment = segment_at(log.ledger_segments, pos)
    header = entry_at(segment, pos) if segment is not None else None
    if header is not None and header.index == index:
        search.print(RowRange(pos, pos + header.size))
    else:
        _add_entry(search, index)
    if any(first <= index <= last for first, last in filter(None, map(log.indexes_in, log.unread.files))):
        return f"cannot tell of the entry {index}: its file cannot be read"
    begin = log.begin_index
    if begin <= index <= log.end.last_index:
        return f"expected the entry {index} before pos {pos}, found none: run dledger lost"
    return f"expected the index {index}, found the entries {begin} to {log.end.last_index}"


def _add_entry(search: _Search, index: int) -> None:
    """Add what the DLedger index knows of an entry that is not in the log."""
    from pyspark_dledger.rocketmq.lost.known_units import entry_of, pointers_to

    log, unit = search.log, search.log.index_files.unit(index)
    # After the end, the units of entries that were never committed may be left from a truncation.
    if unit is not None and index <= max(log.end.last_index, log.checkpoint_committed_index):
        search.pointers.extend(pointers_to(log, [entry_of(unit)]))


def _by_offset_msg_id(search: _Search) -> str:
    match = OFFSET_MSG_ID.fullmatch(search.what)
    if match is None:
        raise OptionError(f"expected an offsetMsgId of 32 or 56 hex digits, host, port and offset, found {search.what}")
    log, offset = search.log, int(match[1], 16)
    message = log.row_of_message(offset)
    if message is None:
        from pyspark_dledger.rocketmq.lost.known_units import KnownMessage, pointers_to

        known = pointers_to(log, [KnownMessage(offset)])
        search.pointers.extend(pointer for pointer in known if pointer.message.witnesses)
        damage = "".join(f"; {pointer.found}" for pointer in known if pointer.is_damage)
        if log.unread.covers(offset, offset + 1):
            return f"cannot tell what is at offset {offset} of the offsetMsgId: its file cannot be read"
        return (
            f"expected a message at offset {offset} of the offsetMsgId, found none (the log has "
            f"{log.min_offset} to {log.max_offset}){damage}"
        )
    found = next(RowReader(log, ("offsetMsgId",)).between(*message), None)
    stored = found.column("offsetMsgId")[0].as_py() if found is not None else None
    if stored == search.what.upper():
        search.print(message)
    elif stored is not None and search.is_chosen:
        note(f"the message at offset {offset} has the offsetMsgId {stored}")
        search.print(message)
    return f"expected the offsetMsgId {search.what} at offset {offset}, found {stored or 'no message'} there"


def _by_uniq_key(search: _Search) -> str:
    return _by_scan(search, "uniqKey", lambda batch: _with_uniq_key(batch, search.what))


def _by_key(search: _Search) -> str:
    if search.is_chosen:
        return _by_scan(search, "key", lambda batch: _with_key(batch, search.what))
    both = "key or uniqKey"
    return _by_scan(
        search, both, lambda batch: sorted({*_with_key(batch, search.what), *_with_uniq_key(batch, search.what)})
    )


def _by_scan(search: _Search, name: str, rows: Callable[[pa.RecordBatch], list[int]]) -> str:
    """Walks the whole log: IndexFiles lack rolled back messages, and may lack others (RocketMQ issue 7477).

    With trustKeyIndex only if these lead to none.
    """
    from pyspark_dledger.rocketmq.lost.known_units import KnownMessage, damaged_rows, offsets_of_keys, pointers_to

    log, damaged = search.log, 0
    columns = ("kind", "pos", "size", "keys", "uniqKey", "problem", "problemCode")
    for batch in _looked_up(search, columns):
        _print_rows(search, batch, rows(batch))
    if not search.printer.count:
        options = replace(log.options, verify_crc=False)
        partitions = plan_read(log, columns, options, option_filters(options))
        found = (batch for partition in partitions for batch in read_known(partition, log.unread))
        for batch in with_progress(log, found, search.progress):
            damaged += len(damaged_rows(batch))
            _print_rows(search, batch, rows(batch))
    offsets = offsets_of_keys(log, {search.what, *_upper_id(search.what)})
    pointers = pointers_to(log, map(KnownMessage, offsets))
    search.pointers.extend(pointers)
    if pointers:
        return f"expected a message with {name} {search.what}, found only units of it, and no intact message"
    if offsets:
        return (
            f"expected a message with {name} {search.what}, found a message with other keys at commitLogOffset "
            f"{offsets[0]}, where the index of keys has the hash: its properties may be damaged: run dledger diff with "
            "all replicas"
        )
    if damaged:
        places = counted(damaged, "place is", "places are")
        return (
            f"expected a message with {name} {search.what}, found none in the intact part of the log; {places} "
            "damaged: dledger lost --candidates names what was there"
        )
    where = "what can be read" if log.unread.texts(None) else "the whole log"
    return f"expected a message with {name} {search.what}, found none in {where}"


def _looked_up(search: _Search, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    """What of the log can have a key, as IndexFiles show it. Nothing without trustKeyIndex. Raises OptionError."""
    log = search.log
    options = replace(log.options, verify_crc=False)
    if not options.trust_key_index:
        return
    if options.topic is None:
        raise OptionError("option trustKeyIndex needs option topic: an IndexFile has hashes of topic and key")
    lookup = Lookup(keys=(search.what, *_upper_id(search.what)))
    for partition in plan_read(log, columns, options, option_filters(options), lookup):
        yield from with_progress(log, read_known(partition, log.unread), search.progress)


def _print_rows(search: _Search, batch: pa.RecordBatch, rows: list[int]) -> None:
    for row in rows:
        pos = batch.column("pos")[row].as_py()
        search.print(RowRange(pos, pos + batch.column("size")[row].as_py()))


def _upper_id(text: str) -> list[str]:
    return [text.upper()] if _ID.fullmatch(text) else []


def _by_queue_offset(search: _Search) -> str:
    from pyspark_dledger.rocketmq.lost.known_units import pointers_to, unit_at

    match = QUEUE_OFFSET.fullmatch(search.what)
    if match is None:
        raise OptionError(f"expected TOPIC/QUEUE/OFFSET such as Orders/3/17, found {search.what}")
    log, wanted = search.log, (match[1], int(match[2]), int(match[3]))
    units = [unit_at(store, *wanted) for store in log.sources]
    known = [(unit, _place_at(log, unit.offset)) for unit in units if not isinstance(unit, str)]
    if not known:
        _scan_queue(search, *wanted)
        return f"expected the queueOffset {match[3]} of {match[1]}/{match[2]}, found {units[0]}"
    found, place = next((each for each in known if each[1] == wanted), known[0])
    message = log.row_of_message(found.offset)
    if message is not None:
        search.print(message)
        # Messages of a light topic have the place of another topic.
        if place is not None and place != wanted and not match[1].startswith("%LMQ%"):
            shown = printable("/".join(map(str, place)))
            note(f"{log.path}: the message says that it is {shown}: it or its ConsumeQueue unit is damaged")
            search.printer.code = FINDINGS
    else:
        _scan_queue(search, *wanted)
    search.pointers.extend(pointers_to(log, [found]))
    return f"expected the message of {search.what} at commitLogOffset {found.offset}, found none that is intact"


def _scan_queue(search: _Search, topic: str, queue_id: int, queue_offset: int) -> None:
    """Print the messages of a place that has no unit, or a damaged one: those that the log has between its neighbours.

    A broker dispatches committed messages only, and its ConsumeQueues can be lost.
    """
    log = search.log
    filters = Filters(topic=(topic,), queue_id=IntFilter(queue_id, queue_id, (queue_id,)))
    options = replace(log.options, verify_crc=False, topic=None, queue_id=None, tags=None)
    lookup = Lookup(IntFilter(queue_offset, queue_offset))
    partitions = plan_read(log, ("pos", "size", "queueOffset"), options, filters, lookup)
    batches = (batch for partition in partitions for batch in read_known(partition, log.unread))
    for batch in with_progress(log, batches, search.progress):
        for row in batch.to_pylist():
            if row["queueOffset"] == queue_offset:
                search.print(RowRange(row["pos"], row["pos"] + row["size"]))


def _place_at(log: Log, offset: int) -> tuple[str, int, int] | None:
    """The topic, queue and queue offset that a message has in its own fields."""
    rows = log.row_of_message(offset)
    batch = next(RowReader(log, ("topic", "queueId", "queueOffset")).between(*rows), None) if rows is not None else None
    found = tuple(column[0].as_py() for column in batch.columns) if batch is not None and batch.num_rows else (None,)
    return found if found[0] is not None else None


def _with_uniq_key(batch: pa.RecordBatch, text: str) -> list[int]:
    from pyspark_dledger.format.arrow_functions import compute as pc

    is_equal = pc.equal(batch.column("uniqKey"), text)
    if _ID.fullmatch(text):
        is_equal = pc.or_kleene(is_equal, pc.equal(batch.column("uniqKey"), text.upper()))
    rows: list[int] = pc.indices_nonzero(is_equal).to_pylist()
    return rows


def _with_key(batch: pa.RecordBatch, key: str) -> list[int]:
    """The rows that have `key` among their keys, which blanks separate."""
    from pyspark_dledger.format.arrow_functions import compute as pc

    keys = batch.column("keys")
    near = pc.indices_nonzero(pc.match_substring(keys, key)).to_pylist()
    return [row for row in near if key in keys[row].as_py().split(" ")]


def _by_time(search: _Search) -> str:
    when = parse_options({"startingTimestamp": search.what}).starting_timestamp
    assert when is not None  # it was parsed from a text
    log = search.log
    reader = RowReader(log, search.printer.columns, starting_timestamp=when, max_batch_rows=1)
    for batch in reader.between(0, INT64_MAX):
        search.printer.print(batch)
        break
    return f"expected a message stored at {search.what} or later, found none"


def _number(text: str, what: str) -> int:
    if not text.isdecimal() or int(text) > INT64_MAX:
        raise OptionError(f"expected {what}, found {text}")
    return int(text)


_FINDERS: dict[str, Callable[[_Search], str]] = {
    "index": _by_index,
    "offsetMsgId": _by_offset_msg_id,
    "uniqKey": _by_uniq_key,
    "key": _by_key,
    "queueOffset": _by_queue_offset,
    "time": _by_time,
}
