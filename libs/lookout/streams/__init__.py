"""Plays a stream: samples, blocks, which blocks are a window, why a window has no answer, plan and run."""

from lookout.streams.blocks import (
    EncodedStrides,
    StreamBlock,
    StrideFrame,
    encode_strides,
    stream_blocks,
    strides_of,
)
from lookout.streams.player import AnsweredWindow, PlayedWindow, Player, answered_windows, basis_of
from lookout.streams.samples import ClipFrames, SourceFrame, read_clip, segment_frames
from lookout.streams.window import MAX_DAMAGE, BlockFacts, Cause, NoAnswer, NoAnswerKind, WindowRule

__all__ = [
    "MAX_DAMAGE",
    "AnsweredWindow",
    "BlockFacts",
    "Cause",
    "ClipFrames",
    "EncodedStrides",
    "NoAnswer",
    "NoAnswerKind",
    "PlayedWindow",
    "Player",
    "SourceFrame",
    "StreamBlock",
    "StrideFrame",
    "WindowRule",
    "answered_windows",
    "basis_of",
    "encode_strides",
    "read_clip",
    "segment_frames",
    "stream_blocks",
    "strides_of",
]
