"""Spans that look like a marked region of a camera's past: its tokens against the landmarks of all cameras.

The region is of a picture that the fleet has watched, so its tokens are those that a window was computed
from; or of somebody's own picture, which is encoded whole. Their keys, computed as those of every block in a
chapter were, are compared with the mean keys of clusters.
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
    """A region that no search can begin from."""


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
    """The spans that look most like a region, and how much: standard deviations above the average cluster.

    The span that the region is of is left out, and so are spans next to one that is there.

    Args:
        pasts: By camera.
        keys: [layers, width], `region_keys`.
        region: Where they are from.
        length_us: Of a span.
        since_us: Only spans that end later; `until_us` only those that begin earlier.
        limit: Spans at most.
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
    """The mean key of a region's tokens in each layer.

    Args:
        windows: How the fleet computes windows.
        epochs: The camera's records near that time.
        region: What is looked for.

    Returns:
        float32 [layers, width], un-rotated, on the host.

    Raises:
        RegionError: There are no records of that time, or `block_keys` raises it.
        LookoutError: The tokens cannot be made.
    """
    for epoch in epochs:
        for record in epoch.blocks.values():
            begin_us = record.wall_offset_us + record.block.start_us
            if begin_us <= region.time_us < record.wall_offset_us + record.block.end_us:
                block = windows.load(record)
                if block.frames:
                    return block_keys(windows, block, region)
    raise RegionError(
        f"camera {region.camera} has no pictures of that time: is it longer ago than Kafka keeps tokens.v1?"
    )


def compared_with(
    keys: torch.Tensor, pasts: Mapping[str, CameraPast]
) -> tuple[dict[str, CameraPast], torch.Tensor]:
    """What `ranked_spans` takes to rank by likeness: landmarks and queries whose products are cosines.

    What all clusters share is taken away first: it is most of every key.

    Args:
        keys: [layers, width], `region_keys`.
        pasts: By camera.
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
    """The mean key of those tokens of a block that lie in a region, in each layer.

    Args:
        windows: How the fleet computes windows.
        block: With at least one frame.
        region: What is looked for.

    Returns:
        float32 [layers, width], un-rotated, on the host.

    Raises:
        RegionError: No token lies in the region, or the engine does not keep the keys of its rows.
    """
    engine = windows.engine
    if not isinstance(engine, KeepsRows):
        raise RegionError(
            "a picture is looked for with the transformers engine alone: set LOOKOUT_ENGINE to it"
        )
    # A name of its own: other searches load the same block.
    block = StrideBlock(f"region/{uuid.uuid4()}", block.index, block.frames)
    plan = windows.planner.plan([block], key=True)
    rows = _rows_inside(plan, block, region.zone)
    if not len(rows):
        raise RegionError(
            "the region holds no token of the picture: mark a larger one"
            if region.picture
            else f"nothing of the region of camera {region.camera} was encoded: mark a larger one, or a time "
            "at which something moves in it"
        )
    try:
        engine.run([WindowRequest(plan, [block])])[0].unwrap()
        keys, _ = engine.rows(plan, 0, plan.rows)
    finally:
        engine.close_stream(block.stream)
    return keys[:, :, torch.from_numpy(rows)].float().mean(2).flatten(1)


def _rows_inside(plan: WindowPlan, block: StrideBlock, zone: Zone | None) -> np.ndarray:
    """Rows of the visual tokens whose middle lies in the zone, int64."""
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
