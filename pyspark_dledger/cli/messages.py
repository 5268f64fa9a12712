"""What `serve` puts beside a node's log where it serves messages."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from pyspark_dledger.errors import OptionError
from pyspark_dledger.raft.node import NodeConfig
from pyspark_dledger.rocketmq.broker.broker_conf import BrokerConf
from pyspark_dledger.rocketmq.dispatch.dispatcher import DispatchSettings
from pyspark_dledger.rocketmq.service.message_service import MessageService, MessageSettings, host_bytes
from pyspark_dledger.store.store_config import StoreConfig

_SWITCH_SECONDS = 0.0005


def open_messages(config: NodeConfig, given: argparse.Namespace, conf: BrokerConf | None) -> MessageService:
    """The part of the node that serves messages, which has the root from now on."""
    if config.store is None:
        raise OptionError("--messages: expected a store on disk, found storeType=MEMORY: leave one of the two out")
    own = config.members()[config.self_id]
    host = conf.store_host if conf is not None else None
    store = config.store_config(config.store)
    # The thread that builds queues is in no hurry: who serves has the interpreter back soon after each wait for a disk
    # or a socket, and not only after 5 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)
    return MessageService.open(
        config.store,
        config.self_id,
        host or host_bytes(own.host, own.port),
        store.all_data_dirs,
        _message_settings(store, given, conf),
        store.read_only_data_dirs,
    )


def _message_settings(store: StoreConfig, given: argparse.Namespace, conf: BrokerConf | None) -> MessageSettings:
    """As the broker.conf has it; without one an old CommitLog expires as the store's own files do."""
    settings = MessageSettings(dispatch=DispatchSettings(clean=store, engine=store.engine), engine=store.engine)
    if conf is not None:
        dispatch = replace(conf.dispatch, engine=store.engine)
        settings = replace(settings, dispatch=dispatch, max_message_size=conf.max_message_size)
    if given.producer_id_expiry_ms is not None:
        settings = replace(settings, producer_id_expiry_ms=given.producer_id_expiry_ms)
    return settings
