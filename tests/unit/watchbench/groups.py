"""Groups of training clips that tests draw once."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
import torch

from watchbench import finetune, scenes
from watchbench.clips import SHORT
from watchbench.finetune import Group, GroupStore


def drawn(folder: Path, together: int = 1) -> Group:
    """A group of two clips, one wanted and one harmless; frames that are seen together have one mask."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(finetune.WANTED, SHORT, ("left",))
        return GroupStore(folder, 3, together, harmless=1).group(SHORT, 0)


def keep_group(group: Group, store: GroupStore) -> None:
    """Let a store have a group as its first one of short clips."""
    truth = {field.name: getattr(group.truth, field.name) for field in fields(scenes.Truth)}
    stored = {"pixels": group.pixels, "keep": group.keep, "truth": truth}
    torch.save(stored, store.folder / f"{SHORT}-000000.pt")
