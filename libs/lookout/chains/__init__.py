"""Chains of windows as records: blocks out of token records, epochs out of Kafka, windows played again."""

from lookout.chains.blocks import (
    WIRE_CAUSES,
    LoadedBlock,
    block_facts,
    cause_of,
    check_block,
    empty_block,
    foreign_reason,
    keep_mask,
    load_block,
    stream_name,
)
from lookout.chains.epochs import EpochRecords, PastScope, read_epochs
from lookout.chains.plans import plan_digest
from lookout.chains.replay import BlockSource, LoadTokens, chain_windows, computed_verdict, replay_epoch

__all__ = [
    "WIRE_CAUSES",
    "BlockSource",
    "EpochRecords",
    "LoadTokens",
    "LoadedBlock",
    "PastScope",
    "block_facts",
    "cause_of",
    "chain_windows",
    "check_block",
    "computed_verdict",
    "empty_block",
    "foreign_reason",
    "keep_mask",
    "load_block",
    "plan_digest",
    "read_epochs",
    "replay_epoch",
    "stream_name",
]
