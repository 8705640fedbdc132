"""Cameras that were filmed once and stored on disk, so that an interrupted bench continues.

Each camera recorded one stretch of minutes at its own time within several hours, as cameras do that record
when something moves.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from lookout.models.engines.transformers.memory.queries import question_queries
from lookout.past.memory.chapters import ChapterFacts, ChapterFolder
from lookout.past.memory.ranking import CameraPast, KeySpace
from lookout.streams.chains import EpochRecords
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from tests.find_world import Filmed, FolderMemory, Spec, World, engine

LATER_US: Final = 637_000_000
"""How much later each camera records than the one before; no multiple of a span."""


@dataclass(slots=True)
class _Folders:
    """The chapters of several folders, as `ChapterFolder` gives them; `later_us`: of each camera."""

    folders: dict[str, ChapterFolder]
    later_us: dict[str, int]

    def chapters(self, camera: str | None = None) -> list[ChapterFacts]:
        """Those of a camera, or of all."""
        names = self.folders if camera is None else [camera] if camera in self.folders else []
        return [
            replace(facts, begin_us=facts.begin_us + later_us, end_us=facts.end_us + later_us)
            for name in names
            for later_us in [self.later_us[name]]
            for facts in self.folders[name].chapters()
        ]

    def read(self, name: str) -> Any:
        """A chapter by its name."""
        for camera, folder in self.folders.items():
            if any(facts.name == name for facts in folder.chapters()):
                chapter, files = folder.read(name)
                return replace(chapter, origin_us=chapter.origin_us + self.later_us[camera]), files
        raise KeyError(name)

    def close(self) -> None:
        """Close all."""
        for folder in self.folders.values():
            folder.close()


class KeptWorld(World):
    """A world with a folder for each camera.

    Args:
        root: Where cameras are kept.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        super().__init__(root / "none")
        self.folder.close()
        self.kept = _Folders({}, {})
        self.folder = self.kept  # type: ignore[assignment]

    def add(self, spec: Spec) -> None:
        """A camera: read where it was kept whole, filmed otherwise."""
        place = self.root / f"{spec.minutes}-minutes" / spec.camera
        known = place / "filmed.pt"
        if not known.exists():
            shutil.rmtree(place, ignore_errors=True)
            world = World(place / "chapters")
            try:
                filmed = world.film(spec)
            finally:
                world.folder.close()
            torch.save(_packed(filmed), place / "filmed.part")
            (place / "filmed.part").rename(known)
        later_us = len(self.cameras) * LATER_US
        self.cameras[spec.camera] = _unpacked(spec, torch.load(known, weights_only=False), later_us)
        self.kept.later_us[spec.camera] = later_us
        self.kept.folders[spec.camera] = World(place / "chapters").folder


def _packed(filmed: Filmed) -> dict[str, Any]:
    return {
        "epoch": filmed.epoch.epoch,
        "blocks": filmed.blocks,
        "records": {i: record.SerializeToString() for i, record in filmed.epoch.blocks.items()},
        "verdicts": {i: [v.SerializeToString() for v in own] for i, own in filmed.epoch.verdicts.items()},
        "p_yes": filmed.p_yes,
        "flops": filmed.flops,
        "vision": filmed.vision,
    }


def _unpacked(spec: Spec, kept: dict[str, Any], later_us: int) -> Filmed:
    epoch = EpochRecords(spec.camera, kept["epoch"])
    for i, data in kept["records"].items():
        record = epoch.blocks[i] = TokensRecord.FromString(data)
        record.wall_offset_us += later_us
    for i, own in kept["verdicts"].items():
        epoch.verdicts[i] = [Verdict.FromString(data) for data in own]
        for verdict in epoch.verdicts[i]:
            for time in (verdict.start, verdict.end, *(frame.time for frame in verdict.evidence)):
                time.FromMicroseconds(time.ToMicroseconds() + later_us)
    return Filmed(spec, epoch, kept["blocks"], kept["p_yes"], kept["flops"], kept["vision"])


class KeptMemory(FolderMemory):
    """The memory of a world, whose landmarks are in few directions as recall reads them."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._space: KeySpace | None = None

    def pasts(self, cameras: Sequence[str]) -> tuple[dict[str, CameraPast], list[str]]:
        """The cameras that match."""
        whole, missing = super().pasts(("*",))
        space = self._space = KeySpace.of([mark for past in whole.values() for mark in past.landmarks])
        matching = super().pasts(cameras)[0]
        return {
            camera: CameraPast(past.chapters, list(map(space.landmarks, past.landmarks)))
            for camera, past in matching.items()
        }, missing

    def queries(self, question: str) -> torch.Tensor:
        """What the question looks for."""
        assert self._space is not None
        return self._space.queries(question_queries(engine(), question))

    def compared(self, keys: torch.Tensor) -> torch.Tensor:
        """The keys in these directions."""
        assert self._space is not None
        return self._space.keys(keys)
