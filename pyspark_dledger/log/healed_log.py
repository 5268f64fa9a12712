"""The healed log of a store and its replicas, with the calls of `Log`."""

from __future__ import annotations

from pyspark_dledger.log.healed_store import HealedStore
from pyspark_dledger.log.log import Log


class HealedLog(HealedStore, Log):
    """A `Log` whose rows and positions are those of `HealedStore`."""
