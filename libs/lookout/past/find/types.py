"""What a search is asked and what it gives: progress, hits, and at the end what was searched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from lookout.past.find import SHARE
from lookout.past.find.clauses import clauses_of
from lookout.rules.types import Zone
from lookout.v1.lineage_pb2 import RecordRef
from lookout.v1.verdicts_pb2 import Verdict

PICTURE_BYTES: Final = 1 << 20
"""Most bytes of a picture of somebody's own: what the gateway accepts as a body."""
JPEG: Final = b"\xff\xd8\xff"
"""How every JPEG begins (ITU-T T.81, B.1.1.3)."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a picture that the fleet has watched, or of somebody's own.

    Attributes:
        camera: Whose picture; empty with `picture`.
        time_us: When it was taken (Unix microseconds).
        zone: The part, in shares of width and height; None: all of it.
        picture: A JPEG of somebody's own; empty: the camera's picture.
    """

    camera: str
    time_us: int
    zone: Zone | None = None
    picture: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class FindQuestion:
    """A search. Times are Unix microseconds.

    Attributes:
        text: The question, one of yes or no, or several that hold one after the other (`clauses_of`).
        cameras: Ids, and patterns with `*`.
        since_us: Only windows that end from here on; None: from the beginning.
        until_us: Only windows that end before; None: up to now.
        limit: The search ends with so many hits.
        threshold: p(yes) of a hit's best window at least.
        share: The most windows that are computed, as a share of all windows of that time.
        exact: `cameras` are ids, whatever characters they have.
        tenants: Only what cameras of these tenants sent; empty: of all.
        like: Spans are ranked by what looks like this; None: by the question.
    """

    text: str
    cameras: Sequence[str] = ("*",)
    since_us: int | None = None
    until_us: int | None = None
    limit: int = 20
    threshold: float = 0.5
    share: float = SHARE
    exact: bool = False
    tenants: Sequence[str] = ()
    like: Region | None = None

    @property
    def remembered(self) -> Sequence[str]:
        """What memories are asked for: an id with a star would be taken for a pattern, and is only walked."""
        return [name for name in self.cameras if "*" not in name] if self.exact else self.cameras

    def names(self, camera: str) -> bool:
        """Whether a camera that fits is one that is meant."""
        return not self.exact or camera in self.cameras

    @property
    def clauses(self) -> tuple[str, ...]:
        """Its clauses, in their order."""
        return clauses_of(self.text)


@dataclass(frozen=True, slots=True)
class FindProgress:
    """What the search does now: `stage` is rank, ask, verify or walk.

    Attributes:
        stage: The step.
        camera: That is looked at; empty: all.
        done: Spans or windows that are done; `total` of so many at most.
        note: A sentence, where there is something to announce.
    """

    stage: str
    camera: str = ""
    done: int = 0
    total: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A moment: consecutive windows of a camera whose p(yes) is at the threshold or above.

    Attributes:
        number: Of the hit in this search. A hit that is given again under its number has grown.
        verdict: Of its best window, as a live watch would have committed it: p(yes), basis, cost, evidence.
        begin_us: When its first window begins (Unix microseconds); `end_us` when its last one ends.
        windows: So many windows were computed of it.
        proposed: p(yes) that the memory gave its span; None: it was found by walking.
        segments: The records of camera.segments.v1 that show its best window, for a clip.
        merged: Numbers of hits that were given before and are a part of this one.
        then: Of each later clause of the question, the first window in which it holds.
        picture_us: When the picture that shows it was taken: in the newest stride of its middle window.
    """

    number: int
    verdict: Verdict
    begin_us: int
    end_us: int
    windows: int
    proposed: float | None
    segments: tuple[RecordRef, ...]
    merged: tuple[int, ...] = ()
    then: tuple[Verdict, ...] = ()
    picture_us: int = 0

    @property
    def camera(self) -> str:
        """Its camera."""
        return self.verdict.camera

    @property
    def p_yes(self) -> float:
        """Of its best window; of several clauses the lowest."""
        return min(verdict.p_yes for verdict in (self.verdict, *self.then))


Left = Literal["", "ranked", "doubted", "walked", "gone", "erased"]
"""`ranked`: not even the memory was asked; `doubted`: the memory says no; `walked`: no memory covers it;
`gone`: Kafka no longer has its records."""


@dataclass(frozen=True, slots=True)
class NotSearched:
    """A time that was not searched, and why.

    Attributes:
        camera: Whose time; empty: no camera in particular.
        begin_us: Unix microseconds; None: no time in particular. `end_us` its end.
        reason: A sentence.
        proposed: The memory's p(yes), where it says yes and the windows were not computed.
        kind: The usual reasons as a word, for programs; empty: any other.
    """

    camera: str
    begin_us: int | None
    end_us: int | None
    reason: str
    proposed: float | None = None
    kind: Left = ""


@dataclass(frozen=True, slots=True)
class FindCost:
    """What a search cost.

    Attributes:
        windows: That were computed; `windows_total` of so many in the time that was asked for.
        flops: Of the language model, for spans and windows; `flops_total` what asking every window would
            take, by the windows that were computed; 0: none was.
        fetched_bytes: Of the memory.
    """

    windows: int = 0
    windows_total: int = 0
    flops: int = 0
    flops_total: int = 0
    fetched_bytes: int = 0

    @property
    def share(self) -> float:
        """The cost relative to asking every window."""
        return self.flops / self.flops_total if self.flops_total else 0.0


@dataclass(frozen=True, slots=True)
class FindSummary:
    """The last message of a search.

    Attributes:
        hits: Numbers of all hits, the most probable first.
        cameras: That have anything of the time.
        ranked: Spans that were ranked by their representatives.
        asked: Spans that the memory was asked about.
        not_searched: What was left out, and why.
        cost: What it cost.
        ended: Why it ended: done, limit, budget, or cancelled.
    """

    hits: tuple[int, ...]
    cameras: int
    ranked: int
    asked: int
    not_searched: tuple[NotSearched, ...]
    cost: FindCost
    ended: str


FindEvent = FindProgress | Hit | FindSummary
