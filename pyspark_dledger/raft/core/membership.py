"""The members that a store's group has. They change only on request: other members would count other majorities."""

from __future__ import annotations

from pyspark_dledger.errors import OptionError
from pyspark_dledger.raft.core.core_config import CoreConfig
from pyspark_dledger.store.dledger_store import DLedgerStore


def join_members(config: CoreConfig, store: DLedgerStore) -> None:
    """Save the members in a store without any. Raises OptionError if it has others, and StoreError."""
    members = tuple(sorted(config.peers))
    if store.member_ids == members:
        return
    if store.member_ids and not config.changes_members:
        raise OptionError(
            f"peers: expected the members {', '.join(store.member_ids)} of this store's group, found "
            f"{', '.join(members)}: use the group's peers, or stop all members and start each with changeMembers once"
        )
    store.save_member_ids(members)
