"""Finds spans that look like a marked region of a picture, by comparing the region's keys with landmarks.

For a camera's picture, the region's tokens are those that its windows were computed from. A caller's own
picture is encoded without pruning. The keys of the region's tokens are computed like those of a chapter's
blocks, and compared with the mean keys of clusters.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch

from lookout.errors import LookoutError
from lookout.models.engines import WindowRequest
from lookout.models.engines.born import KeepsRows
from lookout.models.windows import StrideBlock, WindowPlan
from lookout.past.backtests.windows import PastWindows
from lookout.past.find.spans import PastSpan, ranked_spans
from lookout.past.find.types import Region
from lookout.past.memory.ranking import CameraPast, Landmarks
from lookout.rules.types import Zone
from lookout.rules.zones import contains
from lookout.streams.chains import EpochRecords

_TOGETHER: Final = 256


class RegionError(LookoutError):
    """A region that cannot be searched by."""


def similar_spans(
    pasts: Mapping[str, CameraPast],
    keys: torch.Tensor,
    region: Region,
    length_us: int,
    *,
    since_us: int | None = None,
    until_us: int | None = None,
    limit: int = 20,
) -> list[tuple[PastSpan, float]]:
    """Return the spans that look most like a region, best first.

    The region's own span is omitted, and so are spans adjacent to a better one.

    Args:
        pasts: Pasts by camera.
        keys: The region's mean keys [layers, width], from `region_keys`.
        region: The region.
        length_us: Length of a span in microseconds.
        since_us: Only spans that end after this time; None: all.
        until_us: Only spans that begin before this time; None: all.
        limit: Maximum number of spans to return.

    Returns:
        Each span with its score, in standard deviations above an average cluster.
    """
    ranked = ranked_spans(*compared_with(keys, pasts), length_us, since_us, until_us)
    own = PastSpan(region.camera, begin := region.time_us // length_us * length_us, begin + length_us)
    chosen: dict[PastSpan, float] = {}
    for first in range(0, len(ranked), _TOGETHER):
        stop = min(first + _TOGETHER, len(ranked))
        for span, score in zip(ranked.part(first, stop), ranked.scores(first, stop), strict=True):
            if score <= 0 or len(chosen) == limit:
                return list(chosen.items())
            if span != own and not {span.before, span.after} & chosen.keys():
                chosen[span] = score
    return list(chosen.items())


def region_keys(windows: PastWindows, epochs: Sequence[EpochRecords], region: Region) -> torch.Tensor:
    """Return the mean key of a region's tokens in each layer.

    Args:
        windows: Loads the block and computes its keys, as the fleet does.
        epochs: The camera's records around the region's time.
        region: The region of a camera's picture.

    Returns:
        float32 [layers, width], un-rotated, on the host.

    Raises:
        RegionError: There are no records of that time, or `block_keys` raises it.
        LookoutError: The tokens cannot be computed again.
    """
    for epoch in epochs:
        for record in epoch.blocks.values():
            begin_us = record.wall_offset_us + record.block.start_us
            if begin_us <= region.time_us < record.wall_offset_us + record.block.end_us:
                block = windows.load(record)
                if block.frames:
                    return block_keys(windows, block, region)
    raise RegionError(
        f"like: tokens.v1 has no pictures of camera {region.camera} at that time; they may be past the "
        "topic's retention"
    )


def compared_with(
    keys: torch.Tensor, pasts: Mapping[str, CameraPast]
) -> tuple[dict[str, CameraPast], torch.Tensor]:
    """Return copies of the pasts and the region's keys as queries, so that `ranked_spans` ranks by cosine
    similarity.

    All keys are largely the same vector, the mean key of all clusters. It is subtracted from keys and
    queries, which are then scaled to unit length.

    Args:
        keys: The region's mean keys [layers, width], from `region_keys`.
        pasts: Pasts by camera.
    """
    queries = keys.clone()
    marks = [mark for past in pasts.values() for mark in past.landmarks]
    if not marks:
        return {**pasts}, queries
    shared = np.concatenate([mark.keys for mark in marks], 1).astype(np.float32).mean(1, keepdims=True)
    layers = torch.from_numpy(marks[0].layers)
    queries[layers] = torch.from_numpy(_direction(keys[layers].numpy() - shared[:, 0]))

    def turned(mark: Landmarks) -> Landmarks:
        return replace(mark, keys=_direction(mark.keys.astype(np.float32) - shared).astype(np.float16))

    return {
        camera: CameraPast(past.chapters, list(map(turned, past.landmarks))) for camera, past in pasts.items()
    }, queries


def _direction(vectors: np.ndarray) -> np.ndarray:
    out: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-6)
    return out


def block_keys(windows: PastWindows, block: StrideBlock, region: Region) -> torch.Tensor:
    """Return the mean key, in each layer, of a block's tokens that lie in a region.

    Args:
        windows: Computes the block's keys, as the fleet does.
        block: The block; it has at least one frame.
        region: The region.

    Returns:
        float32 [layers, width], un-rotated, on the host.

    Raises:
        RegionError: No token lies in the region, or the engine cannot export the keys of its rows.
    """
    engine = windows.engine
    if not isinstance(engine, KeepsRows):
        raise RegionError(
            "searching by a picture needs the transformers engine: set LOOKOUT_ENGINE=transformers"
        )
    # Use a unique stream name, because other searches may load the same block at the same time.
    block = StrideBlock(f"region/{uuid.uuid4()}", block.index, block.frames)
    plan = windows.planner.plan([block], key=True)
    rows = _rows_inside(plan, block, region.zone)
    if not len(rows):
        raise RegionError(
            "the region is too small to contain a token of the picture: mark a larger one"
            if region.picture
            else f"pruning kept no token in the region of camera {region.camera}: mark a larger one, or a "
            "time at which something moves in it"
        )
    try:
        engine.run([WindowRequest(plan, [block])])[0].unwrap()
        keys, _ = engine.rows(plan, 0, plan.rows)
    finally:
        engine.close_stream(block.stream)
    return keys[:, :, torch.from_numpy(rows)].float().mean(2).flatten(1)


def _rows_inside(plan: WindowPlan, block: StrideBlock, zone: Zone | None) -> np.ndarray:
    """Return the rows of visual tokens whose centre lies in the zone, int64."""
    rows: list[int] = []
    for part in plan.parts:
        if part.block != block.index:
            continue
        frame = block.frames[part.frame]
        height, width = frame.keep.shape
        for place, row in zip(frame.kept.tolist(), range(part.visual_start, part.visual_stop), strict=True):
            x, y = (place % width + 0.5) / width, (place // width + 0.5) / height
            if zone is None or contains(zone, x, y):
                rows.append(row)
    return np.array(rows, np.int64)
