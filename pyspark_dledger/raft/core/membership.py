"""The members that a store's group has. They change only on request: other members would count other majorities."""

from __future__ import annotations

import json

from pyspark_dledger.errors import OptionError, StoreError
from pyspark_dledger.raft.core.core_config import CoreConfig
from pyspark_dledger.store.dledger_store import DLedgerStore

_CONTROLS = "controls"


class Membership:
    """Which other members take control entries, as they said at their last connection. It is saved."""

    def __init__(self, config: CoreConfig, store: DLedgerStore) -> None:
        self._store = store
        self._others = config.others
        self._controls = set(_read(store.member_state)) & set(config.others)

    def connected(self, peer_id: str, takes_controls: bool) -> None:
        """A peer said hello. Raises StoreError."""
        if takes_controls == (peer_id in self._controls):
            return
        found = {*self._controls, peer_id} if takes_controls else self._controls - {peer_id}
        state = json.dumps({_CONTROLS: sorted(found)})
        try:
            self._store.save_member_ids(self._store.member_ids, state)
        finally:
            self._controls = found

    @property
    def take_controls(self) -> bool:
        """Whether all members take control entries: Java's do not."""
        return self._controls.issuperset(self._others)


def _read(state: str) -> list[str]:
    if not state:
        return []
    try:
        found = json.loads(state)[_CONTROLS]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"members: expected the members that take control entries, found {error}") from None
    return [each for each in found if isinstance(each, str)]


def join_members(config: CoreConfig, store: DLedgerStore) -> Membership:
    """Save the members in a store without any. Raises OptionError if it has others, and StoreError."""
    members = tuple(sorted(config.peers))
    if store.member_ids != members:
        if store.member_ids and not config.changes_members:
            raise OptionError(
                f"peers: expected the members {', '.join(store.member_ids)} of this store's group, found "
                f"{', '.join(members)}: use the group's peers, or stop all members and start each with changeMembers "
                "once"
            )
        store.save_member_ids(members)
    return Membership(config, store)
