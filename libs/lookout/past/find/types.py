"""Plain data of a search: the question, and its hits. Its other events are messages of `memory.proto`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from lookout.past.find import SHARE
from lookout.past.find.clauses import clauses_of
from lookout.rules.types import Zone
from lookout.v1.lineage_pb2 import RecordRef
from lookout.v1.memory_pb2 import FindProgress, FindSummary
from lookout.v1.verdicts_pb2 import Verdict

PICTURE_BYTES: Final = 1 << 20
"""Maximum bytes of a caller's own picture, which is also what the gateway accepts as a body."""
JPEG: Final = b"\xff\xd8\xff"
"""How every JPEG begins (ITU-T T.81, B.1.1.3)."""


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a picture that a camera of the fleet has taken, or of the caller's own picture.

    Attributes:
        camera: Id of the camera; empty with `picture`.
        time_us: When the camera took the picture (Unix microseconds).
        zone: The part, in shares of width and height; None: the whole picture.
        picture: The caller's own picture, a JPEG; empty: the camera's.
    """

    camera: str
    time_us: int
    zone: Zone | None = None
    picture: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class FindQuestion:
    """A search. Times are Unix microseconds.

    Attributes:
        text: A yes/no question, or several clauses that hold one after the other (`clauses_of`).
        cameras: Ids, and patterns with `*`.
        since_us: Only windows that end at this time or later; None: from the beginning.
        until_us: Only windows that end before this time; None: up to now.
        limit: Number of hits after which the search ends.
        threshold: Least p(yes) of a hit's best window.
        share: The most windows that are computed, as a share of all windows in the time range.
        exact: `cameras` are ids, even if they contain a `*`.
        tenants: Only cameras of these tenants; empty: of all.
        like: Rank spans by their likeness to this region; None: by the question.
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
        """Cameras to look up in memories. An exact id with a `*` would be taken for a pattern, so it is left
        out and only walked."""
        return [name for name in self.cameras if "*" not in name] if self.exact else self.cameras

    def names(self, camera: str) -> bool:
        """Whether a camera that matches `cameras` as patterns is asked about; if `exact`, only by its id."""
        return not self.exact or camera in self.cameras

    @property
    def clauses(self) -> tuple[str, ...]:
        """The question's clauses, in order."""
        return clauses_of(self.text)


@dataclass(frozen=True, slots=True)
class Hit:
    """A moment: consecutive windows of a camera whose p(yes) is at the threshold or above.

    Attributes:
        number: Number of the hit in this search. A hit that is yielded again under its number has grown.
        verdict: Verdict of its best window, as a live watch would have committed it.
        begin_us: Begin of its first window (Unix microseconds).
        end_us: End of its last window, those in `then` included.
        windows: Number of windows with a yes that it consists of.
        proposed: The memory's p(yes) for its span; None: it was found by walking.
        segments: Records of camera.segments.v1 that show its best window, for a clip.
        merged: Numbers of earlier hits that are now parts of this one.
        then: For each later clause of the question, the first window in which it holds.
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
        """Id of the camera."""
        return self.verdict.camera

    @property
    def p_yes(self) -> float:
        """p(yes) of the best window; with several clauses, the lowest of theirs."""
        return min(verdict.p_yes for verdict in (self.verdict, *self.then))


Left = Literal["", "ranked", "doubted", "walked", "gone", "erased"]
"""Why a time was not searched. `ranked`: it ranked too low to ask the memory; `doubted`: the memory says no;
`walked`: no memory covers it; `gone`: Kafka no longer has its records; `erased`; empty: another reason."""


FindEvent = FindProgress | Hit | FindSummary
