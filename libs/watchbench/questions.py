"""The questions, their wordings, and their true answers for a window of frames.

Every answer is a function of the truth of the window's frames 0..end. The first wording of a question is
canonical; the others are used in training, so that a slightly different wording is understood. ``known`` is
False where people could disagree (half in view, falling just now); such cases are neither trained nor scored.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lookout.models import DEMO_QUESTIONS
from watchbench.scenes import FOREVER, Truth


@dataclass(frozen=True, slots=True)
class Question:
    """A yes/no question. ``family`` as in docs/watchbench.md; standing watches ask the ``product``
    questions."""

    name: str
    family: str
    wordings: tuple[str, ...]
    product: bool = False

    @property
    def text(self) -> str:
        return self.wordings[0]


QUESTIONS: tuple[Question, ...] = (
    Question(
        "person",
        "seen",
        (
            DEMO_QUESTIONS["person"],
            "Is anyone in view?",
            "Is there a person?",
            "Is somebody there?",
            "Can you see a person?",
            "Is there someone in the picture?",
        ),
        True,
    ),
    Question(
        "lying",
        "lying",
        (
            DEMO_QUESTIONS["lying"],
            "Is a person lying on the ground?",
            "Has someone fallen?",
            "Is there a person lying on the floor?",
            "Did somebody fall down?",
            "Is anybody on the floor?",
        ),
        True,
    ),
    Question(
        "vehicle",
        "seen",
        (
            DEMO_QUESTIONS["vehicle"],
            "Is there a vehicle?",
            "Is a car in view?",
            "Can you see a car or a van?",
            "Is there a car in the picture?",
        ),
        True,
    ),
    Question(
        "many",
        "crowd",
        (
            DEMO_QUESTIONS["many"],
            "Are many people in view?",
            "Is there a crowd?",
            "Are there five or more people?",
            "Is it crowded?",
        ),
        True,
    ),
    Question(
        "left",
        "left-behind",
        (
            DEMO_QUESTIONS["left"],
            "Was an object left behind?",
            "Is there an abandoned object?",
            "Has someone left a bag?",
            "Is there a suitcase left alone?",
            "Was something put down and left?",
        ),
        True,
    ),
    Question("now_person", "now", ("Is a person in view now?",)),
    Question("now_vehicle", "now", ("Is a vehicle in view now?",)),
    Question("seen_person", "seen", ("Was a person in view earlier?",)),
    Question("seen_vehicle", "seen", ("Was a vehicle in view earlier?",)),
    Question("order", "order", ("Did a person appear before a vehicle?",)),
    Question("count", "count", ("Were there at least two vehicles?",)),
    Question("people", "count", ("Were there at least two people?",)),
    Question("novel", "novel", ("Did a vehicle newly appear?",)),
    Question("return", "return", ("Did the same vehicle come back?",)),
    Question("dwell", "dwell", ("Was a person in view for more than six seconds?",)),
    Question("static", "static-only", ("Is there an object that was there from the start?",)),
    Question("slow", "slow", ("Did something change slowly?",)),
)
NAMES = tuple(question.name for question in QUESTIONS)
PRODUCT = tuple(question.name for question in QUESTIONS if question.product)
BY_NAME = {question.name: question for question in QUESTIONS}
IN_VIEW, HARDLY = 0.4, 0.08


def answers(truth: Truth) -> tuple[Tensor, Tensor]:
    """(answer, known), bool [B, T, questions]: the truth of the window made of frames 0..t, for every t."""
    b, t = truth.person_share.shape[:2]
    frame = torch.arange(t)[None]
    step = float(truth.times[0, 1] - truth.times[0, 0]) if t > 1 else 0.5
    short = max(1, round(1.0 / step))

    def ever(mask: Tensor) -> Tensor:
        return mask.cummax(1).values.bool()

    def before(mask: Tensor, frames: int) -> Tensor:
        past = torch.zeros_like(mask)
        past[:, frames:] = ever(mask)[:, : t - frames] if frames < t else False
        return past.bool()

    def view(share: Tensor, yes: float = IN_VIEW) -> tuple[Tensor, Tensor]:
        return (share >= yes).any(2), (share > HARDLY).any(2)

    person, person_hint = view(truth.person_share)
    car, car_hint = view(truth.vehicle_share, 0.35)
    down = (truth.lying & (truth.person_share >= 0.5)).any(2)
    down_hint = ((truth.lying | truth.falling) & (truth.person_share > HARDLY)).any(2)
    crowd = (truth.person_share >= 0.5).sum(2)
    crowd_hint = (truth.person_share > HARDLY).sum(2)
    left, left_hint = _left(truth, short)
    # (answer, answer with the unclear cases): known if both agree.
    pairs = {
        "person": (ever(person), ever(person_hint)),
        "lying": (ever(down), ever(down_hint)),
        "vehicle": (ever(car), ever(car_hint)),
        "many": (ever(crowd >= 5), ever(crowd_hint >= 4)),
        "left": (left, left_hint),
        "now_person": (person, person_hint),
        "now_vehicle": (car, car_hint),
        "seen_person": (before(person, short), ever(person_hint)),
        "seen_vehicle": (before(car, short), ever(car_hint)),
        "count": _distinct(truth.vehicle_share, truth.twin),
        "people": _distinct(truth.person_share, torch.zeros_like(truth.twin)),
        "novel": _novel(car, car_hint, ever),
        "return": _returns(truth, ever),
        "dwell": _dwell(truth, step),
        "static": _static(truth),
        "slow": _slow(truth, b, t, step),
    }
    answer = {name: pair[0] for name, pair in pairs.items()}
    known = {name: pair[0] == pair[1] for name, pair in pairs.items()}
    first_person, first_car = (torch.where(ever(m), 0, 1).sum(1) for m in (person_hint, car_hint))
    sure = ((first_person - first_car).abs() >= short)[:, None]
    answer["order"] = (first_person < first_car)[:, None].expand(b, t)
    known["order"] = ever(person) & ever(car) & sure
    enough = frame >= 1
    out = torch.stack([answer[name].expand(b, t) for name in NAMES], 2)
    sure_of = torch.stack([known[name].expand(b, t) for name in NAMES], 2) & enough[..., None]
    return out, sure_of


def _left(truth: Truth, short: int) -> tuple[Tensor, Tensor]:
    """Find whether an object was set down after the window began, is still there, and was in sight for at
    least a second.
    """
    fresh = truth.object_there & ~truth.object_there[:, :1]
    clear = fresh & (truth.object_share >= 0.5)
    return (fresh & (clear.cumsum(1) > short)).any(2), fresh.any(2)


def _distinct(share: Tensor, twin: Tensor) -> tuple[Tensor, Tensor]:
    """Find whether at least two of a kind were seen. Twins look like one vehicle that comes back, so they
    must be in view at the same time.
    """
    seen = (share >= IN_VIEW).cummax(1).values.sum(2)
    together = (share >= IN_VIEW).sum(2).ge(2).cummax(1).values
    hint = (share > HARDLY).cummax(1).values.sum(2)
    return torch.where(twin[:, None], together, seen >= 2), hint >= 2


def _novel(car: Tensor, hint: Tensor, ever: object) -> tuple[Tensor, Tensor]:
    later = car.cummax(1).values.bool()
    started = hint[:, :1]
    return later & ~started, hint.cummax(1).values.bool() & ~car[:, :1]


def _returns(truth: Truth, ever: object) -> tuple[Tensor, Tensor]:
    """Find whether a vehicle went out of view and one that looks the same came in afterwards."""
    share = truth.vehicle_share
    seen = (share > HARDLY).cummax(1).values.bool()
    gone = seen & ~(share > HARDLY)
    back = torch.zeros_like(seen[..., 0])
    hint = torch.zeros_like(back)
    for a, b in ((0, 1), (1, 0)):
        alone = gone[..., a] & ~seen[..., b]
        back |= alone.cummax(1).values.bool() & (share[..., b] >= IN_VIEW)
        hint |= seen[..., b]
    same = truth.twin[:, None]
    return back.cummax(1).values.bool() & same, hint & seen[..., 0] & same


def _dwell(truth: Truth, step: float) -> tuple[Tensor, Tensor]:
    stay = (truth.person_share >= IN_VIEW).any(2)
    run, longest, runs = torch.zeros_like(stay[:, 0], dtype=torch.float), None, []
    for k in range(stay.shape[1]):
        run = torch.where(stay[:, k], run + step, torch.zeros_like(run))
        longest = run if longest is None else torch.maximum(longest, run)
        runs.append(longest)
    length = torch.stack(runs, 1)
    return length >= 6.5, length >= 5.0


def _static(truth: Truth) -> tuple[Tensor, Tensor]:
    old = truth.object_there & truth.object_there[:, :1] & (truth.placed_at[:, None] <= -FOREVER / 2)
    return (old & (truth.object_share >= 0.5).cummax(1).values).any(2), old.any(2)


def _slow(truth: Truth, b: int, t: int, step: float) -> tuple[Tensor, Tensor]:
    # The change can be recognised only if the window has at least two seconds of it.
    moved = (truth.times - truth.slow_from[:, None]).clamp(0, 8) - (
        truth.times[:, :1] - truth.slow_from[:, None]
    ).clamp(0, 8)
    moved = moved * truth.slow_moves[:, None]
    return moved >= 3.0, moved > 0.5
