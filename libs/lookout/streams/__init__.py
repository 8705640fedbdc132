"""Turns a stream, live or replayed, into samples, blocks and windows, and states why a window has no answer.

Names are imported only when first used, because decode needs `decode_request` and its image has no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookout.lazy import lazy_names

if TYPE_CHECKING:
    from lookout.streams.blocks import (
        BlockMaker as BlockMaker,
        EncodedStrides as EncodedStrides,
        FrameTime as FrameTime,
        StreamBlock as StreamBlock,
        StrideFrame as StrideFrame,
        empty_indices as empty_indices,
        encode_strides as encode_strides,
        encoded_frame as encoded_frame,
        frame_input as frame_input,
        stream_blocks as stream_blocks,
        strides_of as strides_of,
    )
    from lookout.streams.chain import (
        STRIDES as STRIDES,
        AnsweredWindow as AnsweredWindow,
        Answerer as Answerer,
        ChainRule as ChainRule,
        ChainRunner as ChainRunner,
        EngineAnswers as EngineAnswers,
        WindowChain as WindowChain,
        basis_of as basis_of,
        run_batch as run_batch,
    )
    from lookout.streams.filmed import filmed_pictures as filmed_pictures
    from lookout.streams.player import (
        ClipWindow as ClipWindow,
        PlayedWindow as PlayedWindow,
        Player as Player,
        answered_windows as answered_windows,
    )
    from lookout.streams.replay import (
        BlockGoneError as BlockGoneError,
        ChainWindow as ChainWindow,
        ReplayedWindow as ReplayedWindow,
        replay_chain as replay_chain,
    )
    from lookout.streams.requests import decode_request as decode_request
    from lookout.streams.samples import (
        ClipFrames as ClipFrames,
        SegmentSampler as SegmentSampler,
        SourceFrame as SourceFrame,
        read_clip as read_clip,
        segment_frames as segment_frames,
    )
    from lookout.streams.window import (
        MAX_DAMAGE as MAX_DAMAGE,
        BlockFacts as BlockFacts,
        Cause as Cause,
        NoAnswer as NoAnswer,
        NoAnswerKind as NoAnswerKind,
        WindowRule as WindowRule,
    )

__getattr__ = lazy_names(__name__)
