"""Opens the part of a node that serves messages, for ``serve``."""

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


def open_messages(config: NodeConfig, args: argparse.Namespace, conf: BrokerConf | None) -> MessageService:
    """Open the message service of a node; it owns the store's root until it is closed."""
    if config.store is None:
        raise OptionError("--messages needs a store on disk, found storeType=MEMORY: leave out one of them")
    own = config.members()[config.self_id]
    host = conf.store_host if conf is not None else None
    store = config.store_config(config.store)
    # The thread that builds queues can wait: threads that serve get the interpreter back after 0.5 ms, not 5 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)
    return MessageService.open(
        config.store,
        config.self_id,
        host or host_bytes(own.host, own.port),
        store.all_data_dirs,
        replace(_message_settings(store, args, conf), max_topics=config.max_topics, max_queues=config.max_queues),
        store.read_only_data_dirs,
    )


def _message_settings(store: StoreConfig, args: argparse.Namespace, conf: BrokerConf | None) -> MessageSettings:
    """Settings of the broker.conf; without one an old CommitLog expires like the store's own files."""
    settings = MessageSettings(dispatch=DispatchSettings(clean=store, engine=store.engine), engine=store.engine)
    if conf is not None:
        dispatch = replace(conf.dispatch, engine=store.engine)
        settings = replace(settings, dispatch=dispatch, max_message_size=conf.max_message_size)
    if args.producer_id_expiry_ms is not None:
        settings = replace(settings, producer_id_expiry_ms=args.producer_id_expiry_ms)
    if args.accept_lost_state:
        settings = replace(settings, accept_lost_state=True)
    return settings
