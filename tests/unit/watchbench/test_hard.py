"""How often harmless scenes are taken for falls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from watchbench import hard, scenes
from watchbench.hard import KINDS, Harmless, false_alarms, kind_of

pytestmark = pytest.mark.long


def test_windows_that_say_a_fall_are_counted_by_kind_and_over_films() -> None:
    films = [
        Harmless("bends down", {"every token": [0.9, 0.1], "pruned": [0.1, 0.1]}),
        Harmless("lies in bed", {"every token": [0.6, 0.5], "pruned": [0.7, 0.8]}),
        Harmless("bends down", {"every token": [], "pruned": []}),
    ]
    told = false_alarms(films)
    assert told["every token"]["windows"] == 4
    assert told["every token"]["said"] == told["pruned"]["said"] == 0.5
    assert (told["every token"]["bends down"], told["pruned"]["bends down"]) == (0.5, 0.0)
    assert told["pruned"]["lies in bed"] == 1.0
    assert told["pruned"]["gets into bed"] is None
    low, high = told["pruned"]["95 %"]
    assert low == 0.0 < high == 1.0  # two films that agree within themselves: anything between


def test_every_kind_of_film_is_drawn() -> None:
    assert {kind_of(scenes.harmless(1, 10.0, seed), 10.0) for seed in range(60)} == set(KINDS)


@pytest.mark.slow
def test_films_of_harmless_scenes_are_asked_whole_and_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, bool]] = []

    def ask(
        model: object,
        pixels: torch.Tensor,
        names: tuple[str, ...],
        ends: tuple[int, ...],
        keep: object = None,
    ) -> torch.Tensor:
        assert (model, names, ends[-1]) == ("model", ("lying",), len(pixels) - 1)
        given.append((len(ends), keep is not None))
        return torch.full((len(ends), 1), 0.9 if keep is None else 0.2)

    monkeypatch.setattr(hard, "ask", ask)
    (film,) = hard.watched("model", 1, tmp_path, first=5, frames=10)
    assert given == [(len(film.said["pruned"]), False), (len(film.said["pruned"]), True)]
    assert film.said["every token"] == pytest.approx([0.9] * given[0][0])
    assert list(tmp_path.glob("*.mp4"))
