"""``python -m benchmarks.profile [STORE]``: the time of each column in a native scan, in milliseconds per GiB."""

from __future__ import annotations

import sys
from functools import partial

from benchmarks import generate
from benchmarks.measure import alternate, timed
from benchmarks.scans import request, scan
from pyspark_dledger.format.columns import DEFAULT_NAMES

STORES = {
    store.name: store for store in (generate.RAW_1K, generate.RAW_128, generate.MESSAGES_1K, generate.MESSAGES_128)
}
PARSED = "queueId"  # the cheapest column that needs the message


def main() -> None:
    store = STORES[sys.argv[1] if len(sys.argv) > 1 else "messages-1k"]
    generate.ensure(store)
    columns = {"walk": (), PARSED: (PARSED,), "all": DEFAULT_NAMES, **{name: (PARSED, name) for name in DEFAULT_NAMES}}
    sides = {name: timed(partial(scan, request(store, names))) for name, names in columns.items()}
    milliseconds = {name: taken * 1e3 for name, taken in alternate(sides, rounds=5, warm_ups=1).items()}
    parsed = milliseconds[PARSED]
    print(f"{'the walk alone':<32}{milliseconds['walk']:8.1f}")
    print(f"{'all columns':<32}{milliseconds['all']:8.1f}")
    print(f"{f'{PARSED} alone':<32}{parsed:8.1f}, and with it:")
    for name in sorted(set(DEFAULT_NAMES) - {PARSED}, key=lambda name: -milliseconds[name]):
        print(f"  {name:<30}{milliseconds[name] - parsed:+8.1f}")


if __name__ == "__main__":
    main()
