"""Plays a stream, live or again: samples, blocks, which blocks are a window, why one has no answer."""

from lookout.streams.blocks import (
    EncodedStrides,
    StreamBlock,
    StrideFrame,
    encode_strides,
    stream_blocks,
    strides_of,
)
from lookout.streams.chain import (
    AnsweredWindow,
    Answers,
    Audit,
    ChainRule,
    ChainRunner,
    EngineAnswers,
    WindowChain,
    WindowSteps,
    basis_of,
    run_batch,
)
from lookout.streams.player import ClipWindow, PlayedWindow, Player, answered_windows
from lookout.streams.replay import BlockGoneError, ChainWindow, ReplayedWindow, ReplayError, replay_chain
from lookout.streams.samples import ClipFrames, SourceFrame, read_clip, segment_frames
from lookout.streams.window import MAX_DAMAGE, BlockFacts, Cause, NoAnswer, NoAnswerKind, WindowRule

__all__ = [
    "MAX_DAMAGE",
    "AnsweredWindow",
    "Answers",
    "Audit",
    "BlockFacts",
    "BlockGoneError",
    "Cause",
    "ChainRule",
    "ChainRunner",
    "ChainWindow",
    "ClipFrames",
    "ClipWindow",
    "EncodedStrides",
    "EngineAnswers",
    "NoAnswer",
    "NoAnswerKind",
    "PlayedWindow",
    "Player",
    "ReplayError",
    "ReplayedWindow",
    "SourceFrame",
    "StreamBlock",
    "StrideFrame",
    "WindowChain",
    "WindowRule",
    "WindowSteps",
    "answered_windows",
    "basis_of",
    "encode_strides",
    "read_clip",
    "replay_chain",
    "run_batch",
    "segment_frames",
    "stream_blocks",
    "strides_of",
]
