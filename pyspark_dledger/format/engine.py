"""Choosing an engine: the native one, or the pure-Python reference with the same calls and results."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from pyspark_dledger.errors import OptionError
from pyspark_dledger.format.encode.encoded import Bodies, Buffer, Checked, Encoded
from pyspark_dledger.format.encode.puts import Ordinals, PutIds, Puts, PutSettings
from pyspark_dledger.format.spec import Compressed, LogEnd, ScanRequest, Segment, Survey, SurveyRequest, TermRun

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from pyspark_dledger.format.encode.message_copies import CopiedMessages, Longs
    from pyspark_dledger.format.json_text import BytesForm

ENGINES = ("auto", "native", "python")

_NATIVE_MODULE = "pyspark_dledger.format.native_engine"
_PYTHON_MODULE = "pyspark_dledger.format.python_engine"
_HOW_TO_BUILD = "reinstall pyspark_dledger where a C++17 compiler is found, or run `make setup` in a clone"


class Engine(Protocol):
    """The calls that both engines have.

    `python_engine`, `append`, `place`, `put_rows`, `put_messages` and `json_text` say what each of them does.
    """

    NAME: str

    def scan(self, request: ScanRequest) -> Iterator[tuple[pa.RecordBatch, list[Compressed]]]: ...

    def log_end(self, segment: Segment, start: int, search_all: bool) -> LogEnd: ...

    def split(self, segment: Segment, start: int, end: int, target_bytes: int) -> list[int]: ...

    def seek(self, segment: Segment, start: int, end: int, index: int) -> int: ...

    def term_runs(self, segment: Segment, start: int, end: int) -> list[TermRun]: ...

    def survey(self, request: SurveyRequest) -> Survey: ...

    def place_messages(
        self, segment: Segment, starts: Longs, sizes: Longs, into: bytearray | memoryview, position: int
    ) -> CopiedMessages: ...

    def crc32(self, data: Buffer, before: int = 0) -> int: ...

    def pack_bodies(self, bodies: Sequence[Buffer]) -> Bodies: ...

    def unpack_bodies(self, bodies: Bodies) -> list[bytes]: ...

    def encode_entries(self, bodies: Bodies, first: int, index: int, term: int, pos: int, space: int) -> Encoded: ...

    def check_entries(self, data: Buffer, index: int, pos: int, least_term: int, most_term: int) -> Checked: ...

    def find_torn(self, data: Buffer, pos: int) -> int | None: ...

    def new_ordinals(self) -> Ordinals: ...

    def encode_messages(self, batch: pa.RecordBatch, settings: PutSettings, ordinals: Ordinals) -> Bodies: ...

    def read_puts(self, bodies: Bodies) -> Puts: ...

    def stamp_puts(
        self,
        bodies: Bodies,
        keep: npt.NDArray[np.bool_],
        queue_offsets: npt.NDArray[np.int64],
        store_timestamp: int,
        store_host: bytes,
    ) -> Bodies: ...

    def patch_physical_offsets(self, data: bytearray, units: bytearray) -> None: ...

    def put_ids(self, segment: Segment, start: int, end: int) -> PutIds: ...

    def java_hashes(self, strings: pa.StringArray) -> npt.NDArray[np.int32]: ...

    def json_lines(self, batch: pa.RecordBatch, form: BytesForm) -> Iterator[bytes]: ...


def get_engine(name: str = "auto") -> Engine:
    """The engine of that name, in any case: ``native``, ``python``, or ``auto`` for native where it is built.

    Without the native engine ``auto`` warns once and gives the slow reference, and ``native`` raises OptionError.
    """
    wanted = name.lower()
    if wanted not in ENGINES:
        raise OptionError(f"expected engine {', '.join(ENGINES[:-1])} or {ENGINES[-1]}, found {name!r}")
    if wanted == "python":
        return _load(_PYTHON_MODULE)
    try:
        return _load(_NATIVE_MODULE)
    except ImportError as error:
        if wanted == "native":
            raise OptionError(
                f"expected the native engine, found it not built ({error}): {_HOW_TO_BUILD}, or use engine=python"
            ) from error
        _warn_once(str(error))
        return _load(_PYTHON_MODULE)


def _load(module: str) -> Engine:
    """Only the engine that is used: every task and every planning of Spark pays for what is imported."""
    engine: Engine = importlib.import_module(module)
    return engine


_warned = False


def _warn_once(reason: str) -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"the native engine is not built ({reason}), the pure-Python one is many times slower: {_HOW_TO_BUILD}; "
            "engine=python silences this",
            RuntimeWarning,
            stacklevel=3,
        )
