"""Data classes of a search: the question and the hits. Its other events are messages of `memory.proto`."""

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
"""Maximum bytes of a caller's own picture. The gateway has the same limit for a request's body."""
JPEG: Final = b"\xff\xd8\xff"
"""The first bytes of every JPEG (ITU-T T.81, B.1.1.3)."""


@dataclass(frozen=True, slots=True)
class Region:
    """A region of a picture that a camera of the fleet took, or of the caller's own picture.

    Attributes:
        camera: Id of the camera; empty if `picture` is given.
        time_us: When the camera took the picture (Unix microseconds).
        zone: The region, in shares of width and height; None: the whole picture.
        picture: The caller's own picture, a JPEG; empty: the camera's picture is used.
    """

    camera: str
    time_us: int
    zone: Zone | None = None
    picture: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class FindQuestion:
    """A search. Times are Unix microseconds.

    Attributes:
        text: A yes/no question, or several clauses that must hold one after the other (`clauses_of`).
        cameras: Ids, and patterns with `*`.
        since_us: Only windows that end at this time or later; None: from the beginning.
        until_us: Only windows that end before this time; None: up to now.
        limit: Number of hits after which the search ends.
        threshold: Minimum p(yes) of a hit's best window.
        share: Maximum share of the windows in the time range to compute.
        exact: Whether `cameras` are only ids, even if they contain a `*`.
        tenants: Only cameras of these tenants; empty: of all tenants.
        like: Rank spans by their likeness to this region; None: rank them by the question.
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
        """Cameras to look up in memories. An exact id that contains a `*` is omitted, because a memory would
        take it for a pattern; that camera is only walked."""
        return [name for name in self.cameras if "*" not in name] if self.exact else self.cameras

    def names(self, camera: str) -> bool:
        """Whether the search covers a camera that matches `cameras`. With `exact`, its id must be listed."""
        return not self.exact or camera in self.cameras

    @property
    def clauses(self) -> tuple[str, ...]:
        """The question's clauses, in order."""
        return clauses_of(self.text)


@dataclass(frozen=True, slots=True)
class Hit:
    """A moment: consecutive windows of a camera whose p(yes) reaches the threshold.

    Attributes:
        number: Number of the hit in this search. If the hit grows, it is yielded again under this number.
        verdict: Verdict of the hit's best window, as a live watch would have committed it.
        begin_us: Begin of the hit's first window (Unix microseconds).
        end_us: End of the hit's last window, including the windows in `then` (Unix microseconds).
        windows: Number of the hit's windows, all answered yes.
        proposed: The memory's p(yes) for the hit's span; None: the hit was found by walking.
        segments: References to the segments of the best window in camera.segments.v1, for a clip.
        merged: Numbers of earlier hits that are now part of this one.
        then: For each later clause of the question, the verdict of the first window in which it holds.
        picture_us: Time of the picture that best shows the hit, in the newest stride of its middle window
            (Unix microseconds).
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
        """p(yes) of the best window; if there are several clauses, the lowest p(yes) of any clause's
        window."""
        return min(verdict.p_yes for verdict in (self.verdict, *self.then))


Left = Literal["", "ranked", "doubted", "walked", "gone", "erased"]
"""Why a time was not searched. `ranked`: it ranked too low to ask the memory; `doubted`: the memory says no;
`walked`: no memory covers it, and the walk did not reach it; `gone`: Kafka no longer has its records;
`erased`: it was erased; empty: another reason."""


FindEvent = FindProgress | Hit | FindSummary
