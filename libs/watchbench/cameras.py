"""Rendered cameras: scripted or random scenes at 448 x 448 pixels and 12.5 frames a second, encoded as a
camera would encode them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from watchbench import drawing, encode, scenes
from watchbench.encode import Encoding
from watchbench.questions import BY_NAME
from watchbench.scenes import FOREVER, KINDS, Scene

FILMS = Path(__file__).parent / "films"  # the demo's films, rendered by `watchbench films`
SIZE, FPS = 448, Fraction(25, 2)
LOOK = 4  # increase when the drawing changes, so that cached files are rendered again


@dataclass(frozen=True, slots=True)
class Event:
    """Something in view from ``begin`` to ``end`` (seconds): person, lying, vehicle, many or left."""

    what: str
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class DemoCamera:
    """A rendered camera: its file, the questions worth asking about it, and what really happens in it."""

    id: str
    path: Path
    questions: tuple[str, ...]
    truth: tuple[Event, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Actor:
    """One person, vehicle or object of a script. It stands at ``x, y``; sides are -1 (left) or 1 (right)."""

    x: float
    y: float
    enters: float | None = None
    leaves: float | None = None
    from_side: int = -1
    to_side: int = 1
    takes: float = 3.0
    falls: float | None = None
    rises: float | None = None
    brings: float | None = None
    colour: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """A camera's scene, written by hand."""

    kind: str
    seconds: float
    seed: int
    tall: float
    horizon: float
    people: tuple[Actor, ...] = ()
    vehicles: tuple[Actor, ...] = ()
    questions: tuple[str, ...] = ()
    shake: float = 0.0
    grey: bool = False


SCRIPTS: dict[str, Script] = {
    "room": Script(
        "room",
        48,
        11,
        0.5,
        -0.25,
        questions=("lying", "person"),
        people=(
            Actor(
                0.45,
                0.82,
                enters=5,
                falls=15,
                rises=34,
                leaves=38,
                to_side=-1,
                takes=4,
                colour=(0.75, 0.2, 0.18),
            ),
            Actor(0.75, 0.74, enters=24, leaves=41, from_side=1, to_side=1, takes=3, colour=(0.2, 0.35, 0.7)),
        ),
    ),
    "carpark": Script(
        "carpark",
        50,
        22,
        0.3,
        0.08,
        questions=("vehicle", "person"),
        vehicles=(
            Actor(0.5, 0.72, enters=8, leaves=11.0, takes=3.0, colour=(0.7, 0.12, 0.12)),
            Actor(
                0.55,
                0.84,
                enters=27,
                leaves=37,
                from_side=1,
                to_side=-1,
                takes=3.0,
                colour=(0.82, 0.83, 0.85),
            ),
        ),
        people=(Actor(0.4, 0.9, enters=30, leaves=40, takes=4, from_side=-1, to_side=-1),),
    ),
    "doorway": Script(
        "doorway",
        52,
        33,
        0.34,
        -0.3,
        questions=("left", "many", "person"),
        people=(
            Actor(0.2, 0.78, enters=31.0, leaves=42, takes=2),
            Actor(0.42, 0.85, enters=5, leaves=13, takes=4, brings=9, colour=(0.2, 0.5, 0.3)),
            Actor(0.35, 0.68, enters=30.5, leaves=42.5, takes=3, from_side=1),
            Actor(0.62, 0.9, enters=31.5, leaves=41.5, takes=2.5, from_side=1),
            Actor(0.78, 0.72, enters=30, leaves=43, takes=2, from_side=1),
            Actor(0.88, 0.88, enters=30.8, leaves=42, takes=2, from_side=1),
            Actor(0.08, 0.9, enters=31.2, leaves=41, takes=2),
        ),
    ),
    "shelf": Script(
        "shelf",
        40,
        44,
        0.55,
        -0.2,
        questions=("person", "lying"),
        grey=True,
        people=(
            Actor(0.35, 0.86, enters=6, leaves=18, takes=3),
            Actor(0.65, 0.9, enters=14, leaves=30, from_side=1, takes=3),
        ),
    ),
    "pole": Script(
        "pole",
        40,
        55,
        0.26,
        0.1,
        questions=("person", "vehicle"),
        shake=0.004,
        people=(Actor(0.6, 0.8, enters=10, leaves=15, takes=5, from_side=1, to_side=-1),),
        vehicles=(Actor(0.5, 0.66, enters=24, leaves=27.5, takes=3.5),),
    ),
}
DEMO = ("room", "carpark", "doorway")


def scripted(script: Script) -> Scene:
    """Build the scene of a script: its looks from the seed, its events as written.

    Raises:
        ValueError: A person other than the second one brings an object.
    """
    seed = script.seed
    scene = scenes.sample(1, script.seconds, seed, grade=0.6)
    scene.kind[:] = KINDS.index(script.kind)
    scene.tall[:], scene.horizon[:], scene.squash[:] = script.tall, script.horizon, 1.0
    scene = _dressed(scene, seed)
    look = scene.look
    look["noise"][:], look["clock"][:], look["clock_top"][:], look["clock_x"][:] = 0.007, True, True, 0.03
    look["clock_size"][:], look["grey"][:], look["shake"][:], look["blur"][:] = (
        0.026,
        script.grey,
        script.shake,
        0.0,
    )
    look["gain"][:], look["step"][:], look["lift"][:], look["patches"][:] = 1.0, 0.0, 0.0, 0.0
    look["vignette"][:], look["flicker"][:] = 0.0, 0.0
    look["shadow"][:], look["shadow_x"][:], look["shadow_v"][:] = 0.2, 0.1, 0.004
    for table, slots, actors in (
        (scene.people, scenes.PEOPLE, script.people),
        (scene.vehicles, scenes.VEHICLES, script.vehicles),
    ):
        table["there"][:] = torch.arange(slots) < len(actors)
        for i, actor in enumerate(actors):
            place(table, i, actor)
    scene.people["sits"][:] = False
    scene.people["height"][:] = scenes.PERSON_HEIGHT
    scene.vehicles["twin"][:] = False
    scene.vehicles["above"][:] = False
    scene.vehicles["stretch"][:] = 1.0
    scene.vehicles["van"][:] = torch.tensor([[False, True]])
    scene.slow["there"][:], scene.slow["moves"][:] = False, False
    objects = scene.objects
    objects["there"][:], objects["carried"][:], objects["holds"][:] = False, False, False
    for i, actor in enumerate(script.people):
        if actor.brings is not None:
            if i != 1:
                raise ValueError("in a script, only the second person can bring an object")
            objects["there"][0, 0], objects["carried"][0] = True, True
            objects["from"][0, 0], objects["size"][0, 0], objects["wide"][0, 0] = actor.brings, 0.55, 1.0
            objects["x"][0, 0], objects["y"][0, 0] = actor.x + 0.07, actor.y + 0.02
            objects["colour"][0, 0] = torch.tensor([0.85, 0.65, 0.1])
    return scene


def _dressed(scene: Scene, seed: int) -> Scene:
    """Give a scene its fixed furniture, no random furniture, and muted walls."""
    furniture = scenes.furnish(scene, seed)
    loose = furniture["there"].shape[1] - scenes.FURNITURE
    furniture["there"][:, loose:] = False
    look = dict(scene.look)
    look["wall"], look["floor"] = torch.tensor([[0.62, 0.6, 0.55]]), torch.tensor([[0.42, 0.4, 0.38]])
    look["edge"], look["texture"] = torch.full((1,), 0.38), torch.full((1,), 0.06)
    return replace(scene, furniture=furniture, look=look)


def place(table: dict[str, torch.Tensor], i: int, actor: Actor) -> None:
    """Make row i of the first scene's people or vehicles do what an actor does."""
    person = "fall" in table
    table["there"][0, i] = True
    out = 0.62 if person else 0.85
    begin = -FOREVER if actor.enters is None else actor.enters
    leave = FOREVER if actor.leaves is None else actor.leaves
    for name, value in {
        "x": actor.x,
        "y": actor.y,
        "begin": begin,
        "arrive": begin,
        "depart": leave,
        "walk": actor.takes,
        "walk_out": actor.takes,
        "vanish": FOREVER,
        "start_x": actor.x if actor.enters is None else 0.5 + actor.from_side * out,
        "end_x": 0.5 + actor.to_side * out,
    }.items():
        table[name][0, i] = value
    if person:
        table["fall"][0, i] = FOREVER if actor.falls is None else actor.falls
        table["rise"][0, i] = FOREVER if actor.rises is None else actor.rises
        table["lean"][0, i], table["flat"][0, i], table["arms"][0, i] = 0.15, 0.5, 0.0
    else:
        table["facing"][0, i] = -float(actor.from_side)
    if actor.colour is not None:
        table["shirt" if person else "colour"][0, i] = torch.tensor(actor.colour)


def frames(
    scene: Scene,
    seconds: float,
    size: int = SIZE,
    fps: Fraction = FPS,
    *,
    begin: float = 0.0,
    chunk: int = 25,
) -> Iterator[NDArray[np.uint8]]:
    """Yield the pictures of the first scene of a batch from second `begin` on, uint8 [size, size, 3]."""
    times = torch.arange(round(seconds * fps)) / float(fps) + begin
    back = drawing.background(scene, size)
    for part in torch.split(times, chunk):
        noise = replace(scene, seed=scene.seed + round(float(part[0]) * 1000))
        drawn = drawing.render(noise, part, size, backdrop=back)[0]
        yield from drawn.mul_(255).add_(0.5).byte().numpy()


def events(scene: Scene, seconds: float) -> tuple[Event, ...]:
    """Return when each thing is actually in view, to a tenth of a second."""
    times = torch.arange(round(seconds * 10)) / 10
    truth = scenes.observe(scene, times).truth
    up = truth.person_share[0] >= 0.4
    tracks = {
        "person": up.any(1),
        "lying": (up & truth.lying[0]).any(1),
        "many": up.sum(1) >= 5,
        "vehicle": (truth.vehicle_share[0] >= 0.35).any(1),
        "left": (truth.object_there[0] & ~truth.object_there[0][:1]).any(1),
    }
    out = []
    for what, on in tracks.items():
        edge = torch.diff(torch.cat([torch.zeros(1), on.float(), torch.zeros(1)]))
        begins, ends = (edge > 0).nonzero()[:, 0].tolist(), (edge < 0).nonzero()[:, 0].tolist()
        out += [Event(what, round(a / 10, 1), round(b / 10, 1)) for a, b in zip(begins, ends, strict=True)]
    return tuple(out)


def camera(name: str, folder: Path, seconds: float | None = None, how: Encoding | None = None) -> DemoCamera:
    """Render and encode one scripted camera into ``folder``, unless the same file exists there.

    Raises:
        ValueError: No script has this name.
    """
    if name not in SCRIPTS:
        raise ValueError(f"no scene called {name!r}; there are: {', '.join(SCRIPTS)}")
    script = SCRIPTS[name]
    length = script.seconds if seconds is None else seconds
    how = how or Encoding(gop_s=2.0, phase=0.4, crf=27, seed=script.seed)
    scene = scripted(script)
    key = json.dumps([asdict(script), length, asdict(how), LOOK], sort_keys=True)
    path = folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.mp4"
    if not path.is_file():
        ready = FILMS / path.name
        if ready.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ready, path)
        else:
            encode.write(frames(scene, length), path, FPS, how)
    asked = tuple(BY_NAME[question].text for question in script.questions)
    return DemoCamera(f"demo-{name}", path, asked, events(scene, length), length)


def demo_cameras(folder: Path, names: tuple[str, ...] = DEMO) -> list[DemoCamera]:
    """Return the demo's cameras, put into ``folder`` on first use: a fall, vehicles, a left bag and
    a crowd."""
    return [camera(name, folder) for name in names]


def make_films() -> list[Path]:
    """Remove the films in the package and render those of the demo again."""
    for old in FILMS.glob("*.mp4"):
        old.unlink()
    return [camera(name, FILMS).path for name in DEMO]


def random_camera(kind: str, seed: int, seconds: float) -> Scene:
    """Draw a random scene of a kind, for ``watchbench render``.

    Raises:
        ValueError: There is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(f"no scene called {kind!r}; there are: {', '.join(KINDS)}")
    scene = scenes.sample(1, seconds, seed, grade=0.7)
    scene.kind[:], scene.squash[:] = KINDS.index(kind), 1.0
    return replace(scene, furniture=scenes.furnish(scene, seed))
