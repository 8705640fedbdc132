"""Cameras that were filmed once and kept on disk, so that a bench that was stopped goes on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lookout.past.memory.chapters import ChapterFacts, ChapterFolder
from lookout.streams.chains import EpochRecords
from lookout.v1.tokens_pb2 import TokensRecord
from lookout.v1.verdicts_pb2 import Verdict
from tests.find_world import Filmed, Spec, World


@dataclass(slots=True)
class _Folders:
    """The chapters of several folders, as `ChapterFolder` gives them."""

    folders: dict[str, ChapterFolder]

    def chapters(self, camera: str | None = None) -> list[ChapterFacts]:
        """Those of a camera, or of all."""
        names = self.folders if camera is None else [camera] if camera in self.folders else []
        return [facts for name in names for facts in self.folders[name].chapters()]

    def read(self, name: str) -> Any:
        """A chapter by its name."""
        for folder in self.folders.values():
            if any(facts.name == name for facts in folder.chapters()):
                return folder.read(name)
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
        self.kept = _Folders({})
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
        self.cameras[spec.camera] = _unpacked(spec, torch.load(known, weights_only=False))
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


def _unpacked(spec: Spec, kept: dict[str, Any]) -> Filmed:
    epoch = EpochRecords(spec.camera, kept["epoch"])
    epoch.blocks |= {i: TokensRecord.FromString(data) for i, data in kept["records"].items()}
    for i, own in kept["verdicts"].items():
        epoch.verdicts[i] = [Verdict.FromString(data) for data in own]
    return Filmed(spec, epoch, kept["blocks"], kept["p_yes"], kept["flops"], kept["vision"])
