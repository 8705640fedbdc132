"""Reads blocks and verdicts from Kafka, finds the chain of every window, and replays windows."""

from lookout.streams.chains.blocks import (
    WIRE_CAUSES as WIRE_CAUSES,
    block_facts as block_facts,
    cause_of as cause_of,
    check_block as check_block,
    empty_block as empty_block,
    foreign_reason as foreign_reason,
    keep_mask as keep_mask,
    load_block as load_block,
    stream_name as stream_name,
)
from lookout.streams.chains.epochs import (
    EpochRecords as EpochRecords,
    PastScope as PastScope,
    read_epochs as read_epochs,
)
from lookout.streams.chains.keys import chain_keys as chain_keys
from lookout.streams.chains.partition import (
    ChainRange as ChainRange,
    KafkaPartition as KafkaPartition,
    PartitionLog as PartitionLog,
    PlacedBlock as PlacedBlock,
    RangeRecords as RangeRecords,
    read_range as read_range,
    token_partitions as token_partitions,
    token_ranges as token_ranges,
)
from lookout.streams.chains.plans import plan_digest as plan_digest, strides_digest as strides_digest
from lookout.streams.chains.replay import (
    LoadTokens as LoadTokens,
    chain_verdict as chain_verdict,
    chain_windows as chain_windows,
    computed_verdict as computed_verdict,
    is_repeated as is_repeated,
    replay_epoch as replay_epoch,
)
from lookout.streams.chains.settings import windows_of as windows_of
