"""Tables of every on-disk layout.

All integers are big-endian and signed unless a row says otherwise. Sources: DLedger 0.3.1.2
(``DLedgerEntryCoder``, ``MmapFileList``, ``DLedgerMmapFileStore``), DLedger 0.4.0
(``DLedgerEntryType``), RocketMQ 5.3.3 (``MessageDecoder``, ``CommitLog``, ``MessageSysFlag``,
``ConsumeQueue``).
"""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """One field of a fixed layout: its name, byte offset, length in bytes and numpy type."""

    name: str
    offset: int
    length: int
    dtype: str


def record(text: str) -> tuple[Field, ...]:
    """The fields of a record without gaps, from the types and names in ``text``, such as ``i4 magic; i8 pos``.

    A type is numpy's, big-endian: a signed integer with that number of bytes.
    """
    fields: list[Field] = []
    for kind, name in (part.split() for part in text.split(";")):
        offset = fields[-1].offset + fields[-1].length if fields else 0
        fields.append(Field(name, offset, int(kind[1:]), f">{kind}"))
    return tuple(fields)


# DLedgerEntryCoder: the header before an entry's body.
ENTRY_HEADER = record("i4 magic; i4 size; i8 index; i8 term; i8 pos; i4 channel; i4 chainCrc; i4 bodyCrc; i4 bodySize")
ENTRY_HEADER_SIZE = 48
BODY_CRC_OFFSET = 40

# The limit of DLedger's encode buffer: no Java version writes a larger entry.
MAX_ENTRY_SIZE = 4 * 1024 * 1024

MAGIC_NORMAL = 1
MAGIC_NOOP = 2  # written by 0.4.0 only
MAGIC_CONFIG_CHANGE = 3  # reserved by 0.4.0
MAGIC_BLANK = -1
ENTRY_MAGICS = (MAGIC_NORMAL, MAGIC_NOOP, MAGIC_CONFIG_CHANGE)

# MmapFileList.preAppend: {magic -1, bytes up to the end of the file}; the other bytes keep their values.
BLANK = record("i4 magic; i4 size")
MIN_BLANK_SIZE = 8

# One unit of a DLedger index file, at index * 32 of the concatenated files.
INDEX_UNIT = record("i4 magic; i8 pos; i4 size; i8 index; i8 term")
INDEX_UNIT_SIZE = 32

SEGMENT_NAME_DIGITS = 20


def segment_name(base: int) -> str:
    """The name of the file that begins at position `base`; also of index and queue files."""
    return f"{base:0{SEGMENT_NAME_DIGITS}d}"


def is_segment_name(name: str) -> bool:
    """Whether a file name is that of a segment, an index file or a queue file."""
    return len(name) == SEGMENT_NAME_DIGITS and name.isdecimal()


# CommitLog message, MessageDecoder: the fields before bornHost. These follow:
# bornHost (8 or 20), storeTimestamp 8, storeHost (8 or 20), reconsumeTimes 4,
# preparedTransactionOffset 8, bodyLength 4 + body, topicLength (V1: 1, V2: 2, unsigned) + topic,
# propertiesLength 2 (unsigned) + properties.
MESSAGE_HEADER = record(
    "i4 totalSize; i4 magic; i4 bodyCrc; i4 queueId; i4 flag; i8 queueOffset; i8 physicalOffset; i4 sysFlag; "
    "i8 bornTimestamp"
)
MESSAGE_HEADER_SIZE = 48
PHYSICAL_OFFSET_AT = 28
MESSAGE_MAGIC_V1 = -626843481  # 0xDAA320A7
MESSAGE_MAGIC_V2 = -626843477  # 0xDAA320AB, for longer topics
MESSAGE_MAGIC_BLANK = -875286124  # 0xCBD43194: {bytes up to the end of the file, this magic}
MIN_MESSAGE_SIZE = 91  # V1, IPv4 hosts; body, topic and properties are empty
HOST_SIZES = (8, 20)  # an address of IPv4 or IPv6, and a port of 4 bytes

# A broker reads these lengths as signed numbers, and takes a message with a longer part for the end of its log.
MAX_V1_TOPIC_SIZE = 127
MAX_V2_TOPIC_SIZE = 32767
MAX_PROPERTIES_SIZE = 32767
MAX_TOPIC_SIZE = 255  # TopicValidator

# MessageSysFlag
FLAG_COMPRESSED = 0x1
FLAG_MULTI_TAGS = 0x2
FLAG_TRANSACTION_MASK = 0xC
FLAG_BORN_HOST_V6 = 0x10
FLAG_STORE_HOST_V6 = 0x20
FLAG_NEED_UNWRAP = 0x40
FLAG_INNER_BATCH = 0x80
FLAG_COMPRESSION_SHIFT = 8
FLAG_COMPRESSION_MASK = 0x7
TRANSACTIONS = {0x0: "none", 0x4: "prepared", 0x8: "commit", 0xC: "rollback"}
TRANSACTION_FLAGS = {name: flag for flag, name in TRANSACTIONS.items()}
# Messages of these types are in no queue. A prepared one gets into its queue when it is committed.
TRANSACTIONS_OUTSIDE_QUEUES = (TRANSACTION_FLAGS["prepared"], TRANSACTION_FLAGS["rollback"])
# Type 0 is older than the type bits, when brokers had only zlib.
COMPRESSIONS = {0: "zlib", 1: "lz4", 2: "zstd", 3: "zlib"}

PROPERTY_SEPARATOR = 0x02
NAME_VALUE_SEPARATOR = 0x01
PROPERTY_TAGS = "TAGS"
PROPERTY_KEYS = "KEYS"
PROPERTY_UNIQ_KEY = "UNIQ_KEY"
PROPERTY_DELAY = "DELAY"
PROPERTY_TIMER_DELIVER = "TIMER_DELIVER_MS"
PROPERTY_TRANSACTION = "TRAN_MSG"
PROPERTY_REAL_TOPIC = "REAL_TOPIC"
PROPERTY_REAL_QUEUE_ID = "REAL_QID"
# Only ours: the identity of a put, 24 bytes as 32 characters of base64url.
PROPERTY_ID = "__DLEDGER_ID"
# "__CRC32#" 0x01, ten decimal digits with the least significant first, 0x02 (enabledAppendPropCRC, from 5.2.0)
PROPERTY_CRC = "__CRC32#"
PROPERTY_CRC_SIZE = 20

# A delayed message waits here, in the queue of its level - 1 (ScheduleMessageService).
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
MAX_DELAY_LEVEL = 18
# Prepared messages of transactions, and what ended them (TransactionalMessageUtil).
HALF_TOPIC, OP_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
# The same, where a RocksDB has them (TransMessageRocksDBStore); an op message has its half message's commitLogOffset.
ROCKS_HALF_TOPIC, ROCKS_OP_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
PROPERTY_HALF_OFFSET = "TRANS_OFFSET"
# Messages with a time of delivery (TimerMessageStore).
TIMER_TOPIC = "rmq_sys_wheel_timer"

# One unit of a ConsumeQueue file.
CONSUME_QUEUE_UNIT = record("i8 commitLogOffset; i4 size; i8 tagsCode")
CONSUME_QUEUE_UNIT_SIZE = 20

# One unit of a BatchConsumeQueue file: a message that contains several, whose queue offsets begin at baseOffset.
BATCH_UNIT = record(
    "i8 commitLogOffset; i4 size; i8 tagsCode; i8 storeTimestamp; i8 baseOffset; i2 batchSize; i4 compactedOffset; "
    "i4 reserved"
)
BATCH_UNIT_SIZE = 46

# A file of RocketMQ's index of keys: a header, hash slots, units. IndexFile, IndexHeader.
INDEX_FILE_HEADER = record(
    "i8 beginTimestamp; i8 endTimestamp; i8 beginPhyOffset; i8 endPhyOffset; i4 hashSlotCount; i4 indexCount"
)
INDEX_FILE_HEADER_SIZE = 40
INDEX_FILE_SLOT_SIZE = 4
INDEX_FILE_UNIT = record("i4 keyHash; i8 commitLogOffset; i4 seconds; i4 previous")
INDEX_FILE_UNIT_SIZE = 20

# A unit of the timer log: a message that waits, TimerLog. A slot of the timer wheel: the units of one time, Slot.
TIMER_UNIT = record(
    "i4 size; i8 previous; i4 magic; i8 writtenTime; i4 delay; i8 commitLogOffset; i4 messageSize; i4 topicHash; "
    "i8 reserved"
)
TIMER_UNIT_SIZE = 52
TIMER_BLANK_MAGIC = 0xBBCCDDEE ^ (1880681586 + 8)
TIMER_SLOT = record("i8 time; i8 first; i8 last; i4 count; i4 magic")
TIMER_SLOT_SIZE = 32

LAYOUTS = {
    "DLedger entry header": ENTRY_HEADER,
    "DLedger blank": BLANK,
    "DLedger index unit": INDEX_UNIT,
    "CommitLog message, fixed part": MESSAGE_HEADER,
    "ConsumeQueue unit": CONSUME_QUEUE_UNIT,
}
"""Of the log and of ConsumeQueues."""

ROCKETMQ_LAYOUTS = {
    "BatchConsumeQueue unit": BATCH_UNIT,
    "IndexFile header": INDEX_FILE_HEADER,
    "IndexFile unit": INDEX_FILE_UNIT,
    "Timer log unit": TIMER_UNIT,
    "Timer wheel slot": TIMER_SLOT,
}
"""Of RocketMQ's other files."""
