"""Films whose answers lie in no stride: the proof that strides alone, and even frames, have none of them."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
import torch
from torch import Tensor

from bench.worth import even
from watchbench import drawing, far, scenes
from watchbench.questions import NAMES, answers
from watchbench.scenes import Truth
from watchbench.training import STEP_S

TIMES = torch.arange(far.FRAMES) * STEP_S
SHARES = ("person_share", "vehicle_share")


def _truth(found: far.Films) -> Truth:
    return scenes.observe(found.scene, TIMES).truth


def _content(truth: Truth, scene: scenes.Scene) -> Tensor:
    """What each frame shows, whoever's slot it is: [films, frames, values]."""
    people = truth.person_share.sort(2).values
    cars = truth.vehicle_share[..., None] * (1 + scene.vehicles["colour"][:, None])
    order = truth.vehicle_share.argsort(dim=2, stable=True)
    cars = cars.gather(2, order[..., None].expand_as(cars)).flatten(2)
    boxes = (truth.person_box * truth.person_share[..., None]).sum(2)
    return torch.cat([people, cars, boxes], 2)


def _strides(content: Tensor) -> Counter[bytes]:
    """The strides of a film, however often each."""
    parts = content.view(far.STRIDES, far.STRIDE, *content.shape[1:])
    return Counter(part.contiguous().numpy().tobytes() for part in parts)


def _units(kind: str, values: Tensor) -> list[tuple[list[Tensor], list[Tensor]]]:
    """Of every unit, its films with Yes and its films with No."""
    each = far.UNIT.get(kind, 2)
    return [(list(unit[::2]), list(unit[1::2])) for unit in values.split(each)]


@pytest.mark.parametrize("kind", far.KINDS)
def test_every_second_film_is_a_yes(kind: str) -> None:
    found = far.films(kind, 24, seed=5)
    assert torch.equal(far.answer(kind, _truth(found)), found.yes)
    if found.question.name in NAMES:
        yes, known = (part[:, -1, NAMES.index(found.question.name)] for part in answers(_truth(found)))
        assert known.all()
        assert torch.equal(yes, found.yes)


@pytest.mark.parametrize("kind", far.KINDS)
def test_films_of_either_answer_are_made_of_the_same_strides(kind: str) -> None:
    found = far.films(kind, 24, seed=6)
    for yes, no in _units(kind, _content(_truth(found), found.scene)):
        told, denied = (sum((_strides(film) for film in films), Counter()) for films in (yes, no))
        assert set(told) == set(denied)
        assert len(told) > 1
        if kind != "thrice":  # how often each comes would tell
            assert told == denied


@pytest.mark.parametrize("kind", far.KINDS)
def test_sixteen_even_frames_show_the_same_in_films_of_either_answer(kind: str) -> None:
    found = far.films(kind, 24, seed=7)
    shown = _content(_truth(found), found.scene)[:, even(16)]
    for yes, no in _units(kind, shown):
        assert all(torch.equal(film, yes[0]) for film in (*yes, *no))


def test_the_films_differ_in_what_a_whole_window_shows() -> None:
    for kind in far.KINDS:
        found = far.films(kind, 4, seed=8)
        for yes, no in _units(kind, _content(_truth(found), found.scene)):
            assert not any(torch.equal(one, other) for one in yes for other in no)


def test_scores_of_strides_are_right_in_half_of_the_returns_and_their_mean_in_three_quarters() -> None:
    """Whatever strides with one vehicle, with the other, and with none score, and wherever the limit is."""
    best = {"largest": 0.0, "mean": 0.0}
    films = ((0, 0), (0, 1), (1, 1), (1, 0))
    levels = [n / 4 for n in range(5)]
    for one, other, none, limit in product(levels, levels, levels, [n / 20 + 0.01 for n in range(20)]):
        score = (one, other)
        for name, joined in (("largest", max), ("mean", lambda five: sum(five) / 5)):
            said = [joined([score[a], score[b], none, none, none]) > limit for a, b in films]
            right = sum(yes == (a == b) for yes, (a, b) in zip(said, films, strict=True)) / 4
            best[name] = max(best[name], right)
    assert best == {"largest": 0.5, "mean": 0.75}


@pytest.mark.parametrize("kind", ["order", "third", "dwell", "return"])
def test_pictures_of_the_strides_are_the_same_where_nothing_disturbs_them(kind: str) -> None:
    found = far.films(kind, 1, seed=9, grade=0.0)
    scene = found.scene
    scene.look["clock"][:] = False
    alone = [
        scenes.some_of(scene, torch.tensor([row])) for row in range(len(found.yes))
    ]  # one texture for all
    drawn = [drawing.render(film, TIMES, 56, scenes.observe(film, TIMES)) for film in alone]
    shown = (torch.cat(drawn) * 255).round()
    assert (shown[0] != shown[1]).any()
    for yes, no in _units(kind, shown):
        told, denied = (sum((_strides(film) for film in films), Counter()) for films in (yes, no))
        assert told == denied


@pytest.mark.parametrize("kind", far.KINDS)
@pytest.mark.parametrize("visitor", [False, True])
def test_strides_before_the_window_show_nothing_but_a_visitor(kind: str, visitor: bool) -> None:
    found, past = far.films(kind, 4, seed=11, before=2, visitor=visitor), 2 * far.STRIDE
    times = torch.arange(past + far.FRAMES) * STEP_S
    seen = scenes.observe(found.scene, times).truth
    people, vehicles = (getattr(seen, name)[:, :past].amax(2) for name in SHARES)
    shown = torch.zeros(past, dtype=torch.bool)
    if visitor:
        shown[far.STRIDE + far.HIDDEN.start : far.STRIDE + far.HIDDEN.stop] = True
    assert torch.equal(people >= 0.4, shown.expand_as(people))
    assert not vehicles.any()
    window = scenes.observe(found.scene, times[past:]).truth
    assert torch.equal(far.answer(kind, window), found.yes)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="no films called 'x'; there are: order"):
        far.films("x", 1, seed=1)
