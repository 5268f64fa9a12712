"""`dledger`, with a scrubber that reads the log again and again, not once an hour."""

from __future__ import annotations

import sys
from functools import partial

from pyspark_dledger.cli.main import main
from pyspark_dledger.store import mmap_file_store
from pyspark_dledger.store.scrub import ScrubService

if __name__ == "__main__":
    mmap_file_store.ScrubService = partial(ScrubService, min_pass_seconds=2.0)  # type: ignore[misc,assignment]
    sys.exit(main())
