"""``python -m pyspark_dledger`` is the command line ``dledger``."""

import sys


def _main() -> int:
    from pyspark_dledger.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(_main())
