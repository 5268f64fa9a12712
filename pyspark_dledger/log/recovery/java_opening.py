"""A model of how the Java store is opened, step by step, on `JavaFileList`s that change in memory only.

Sources: DLedger 0.1, 0.2.2, 0.2.7, 0.3.1.2, 0.3.2 and 0.4.0, ``DLedgerMmapFileStore.load`` and ``recover``,
``MemberState``.
"""

from __future__ import annotations

from pathlib import Path

from pyspark_dledger.format.codec import IndexUnit, decode_blank, decode_entry_header, decode_index_unit
from pyspark_dledger.format.engine import Engine
from pyspark_dledger.format.layout import ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE
from pyspark_dledger.format.state_files import COMMITTED_INDEX, CURR_TERM, VOTE_LEADER, parse_properties_file
from pyspark_dledger.log.io.files import MAX_STATE_SIZE, read_start, unreadable
from pyspark_dledger.log.recovery.java_files import (
    JavaExits,
    JavaFileList,
    JavaThrows,
    bad_argument,
    disk_error,
    int64,
    ledger_error,
    parse_long,
    underflow,
)
from pyspark_dledger.log.recovery.java_scan import JavaRules, JavaScan

_TOO_SMALL = "[MONITOR]The processOffset is too small, you should check it manually before truncating the data from"
# The part of a header up to the index.
_INDEX_END = 16


class JavaOpening:
    """One opening of a store; `run` performs it, and the fields are its result.

    Indexes and terms are -1 if Java has none.
    """

    def __init__(
        self, node_dir: Path, data: JavaFileList, index: JavaFileList, rules: JavaRules, engine: Engine
    ) -> None:
        self.data = data
        self.index = index
        self.begin_index = 0 if rules.sized_blanks else -1
        self.end_index = -1
        self.end_term = 0
        self.committed_index = -1
        self.curr_term = rules.first_term
        self.vote_leader: str | None = None
        self.scan: JavaScan | None = None
        self._node_dir = node_dir
        self._rules = rules
        self._engine = engine
        self._committed_text = self._read_committed() if rules.committed_from is not None else None

    def run(self) -> None:
        """Load and recover. Raises JavaEnds if Java does not open the store."""
        self._load_term()
        self.data.load()
        self.index.load()
        self._check_order("before")
        if not self.data.files:
            self.index.truncate(0)
            return
        last_file = self.data.files[-1]
        scan = self.scan = JavaScan(self.data, self.index, self._rules, _number(self._committed_text), self._engine)
        scan.run()
        distance = last_file.base - scan.end
        if distance > last_file.size:
            raise JavaExits(f"{_TOO_SMALL} {scan.end}", f"data/{last_file.name} begins {distance} bytes after that")
        self.end_index, self.end_term = scan.index, scan.term
        if scan.index != -1:
            self._recheck(scan.index)
            self._find_begin()
        self.data.truncate(scan.end)
        self.index.truncate(int64((scan.index + 1) * INDEX_UNIT_SIZE))
        self._check_order("after")
        if self._committed_text is not None:
            self._commit(parse_long(self._committed_text))

    def _load_term(self) -> None:
        """Read ``currterm``; after an error, Java continues with the values that it has read."""
        properties = self._properties("currterm")
        try:
            if CURR_TERM in properties:
                self.curr_term = parse_long(properties[CURR_TERM])
        except JavaThrows:
            return
        self.vote_leader = properties.get(VOTE_LEADER) or None

    def _read_committed(self) -> str | None:
        return self._properties("checkpoint").get(COMMITTED_INDEX, "").strip() or None

    def _properties(self, name: str) -> dict[str, str]:
        """A properties file of the node; empty if it is missing or malformed. Java never reads .bak or .tmp."""
        try:
            # Java decodes and encodes the text, so bytes that are not UTF-8 become U+FFFD.
            text = read_start(self._node_dir / name, MAX_STATE_SIZE).decode(errors="replace")
            return parse_properties_file(text.encode())
        except OSError as error:
            if problem := unreadable(self._node_dir / name, error):
                raise problem from None
            return {}
        except ValueError:
            return {}

    def _check_order(self, when: str) -> None:
        for files, name in ((self.data, "data"), (self.index, "index")):
            found = files.find_disorder()
            if found is not None:
                before, after = found
                raise disk_error(
                    f"check {name} file order failed {when} recovery",
                    f"{name}/{after.name}: expected a file {files.file_size} bytes after {before.name}, found one "
                    f"{after.base - before.base} bytes after it",
                )

    def _recheck(self, index: int) -> None:
        """Java reads the last entry again. Raises JavaThrows if that fails."""
        found = self._get(index)
        if found != index:
            raise disk_error(f"recheck index {found} != {index}", "the last index unit points to another entry")

    def _get(self, index: int) -> int:
        """Read an entry by its index and return the index in its header. Raises JavaThrows if Java's get fails."""
        unit = self._unit(index)
        found = self.data.data_at(unit.pos, unit.size)
        if found is None:
            raise disk_error(
                f"Get null data for {index}", f"its index unit points to {unit.pos}, where there is no data file"
            )
        file, offset = found
        head = file.read(offset, min(ENTRY_HEADER_SIZE, unit.size))
        where, room = f"data/{file.name} at byte {offset}", unit.size - ENTRY_HEADER_SIZE
        if len(head) < ENTRY_HEADER_SIZE:
            raise underflow(f"{where}: expected an entry of {ENTRY_HEADER_SIZE} bytes or more, found {unit.size}")
        header = decode_entry_header(head)
        if header.body_size < min(header.size, 0):
            raise JavaThrows(
                f"java.lang.NegativeArraySizeException: {header.body_size}",
                f"{where}: expected a body's size, found {header.body_size}",
            )
        if room < header.body_size < header.size:
            raise underflow(f"{where}: expected a body of {room} bytes, found {header.body_size}")
        if self._rules.checks_pos and header.pos != unit.pos:
            raise disk_error(f"{unit.pos} != {header.pos}", f"{where}: expected pos {unit.pos}, found {header.pos}")
        return header.index

    def _unit(self, index: int) -> IndexUnit:
        """An index unit as Java's get reads it."""
        if index < 0:
            raise ledger_error(410, "INDEX_OUT_OF_RANGE", f"{index} should gt 0")
        found = self.index.data_at(int64(index * INDEX_UNIT_SIZE), INDEX_UNIT_SIZE)
        if found is None:
            raise disk_error(f"Get null index for {index}", f"no index file has the unit of {index}")
        file, offset = found
        rewritten = self.scan.rewritten_unit(index) if self.scan is not None else None
        return rewritten or decode_index_unit(file.read(offset, INDEX_UNIT_SIZE))

    def _find_begin(self) -> None:
        """Read the index of the first entry from the first file; delete index files before it."""
        if self._rules.sized_blanks:
            self.data.drop_blank_first()
        first = self.data.files[0]
        head = first.read(0, _INDEX_END)
        if self._rules.sized_blanks:
            blank = decode_blank(head)
            if blank is not None:
                head = self._header_after_blank(blank)
            if not any(head[4:8]):
                return
        self.begin_index = int.from_bytes(head[8:], "big", signed=True)
        self.index.reset(int64(self.begin_index * INDEX_UNIT_SIZE))

    def _header_after_blank(self, size: int) -> bytes:
        """The header after the blank at the start of the first file."""
        first = self.data.files[0]
        if not 0 <= size <= first.size:
            raise bad_argument(f"data/{first.name}: expected a blank that ends in the file, found its end at {size}")
        head = first.read(size, _INDEX_END)
        if len(head) < _INDEX_END:
            raise underflow(f"data/{first.name} at byte {size}: expected an entry, found the end of the file")
        return head

    def _commit(self, index: int) -> None:
        """Take the committed index from the checkpoint. Raises JavaThrows if its entry cannot be read."""
        if index == -1 or self.end_index == -1 or index < max(self.begin_index, -1):
            return
        index = min(index, self.end_index)
        if index < self.begin_index:
            raise self._below_begin(index)
        if self._rules.committed_from == "entry":
            self._get(index)
        else:
            self._unit(index)
        self.committed_index = index

    def _below_begin(self, index: int) -> JavaThrows:
        """The error if a damaged first header puts the begin after the end, which limits the committed index."""
        begin, end = self.begin_index, self.end_index
        detail = f"data/{self.data.files[0].name} begins with index {begin}, and the log ends at {end}"
        if not self._rules.names_begin:
            return ledger_error(410, "INDEX_OUT_OF_RANGE", f"{index} should between {begin}-{end}", detail)
        text = f"{index} should be gt {begin}, ledgerBeginIndex may be revised"
        return ledger_error(419, "INDEX_LESS_THAN_LOCAL_BEGIN", text, detail)


def _number(text: str | None) -> int | None:
    try:
        return parse_long(text or "")
    except JavaThrows:
        return None
