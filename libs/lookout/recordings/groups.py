"""Plans groups of encoded frames: prompt rows, frame labels, positions, and which KV entries may be
dropped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from lookout.models.windows import (
    PREFIX,
    VISUAL,
    EncodedFrame,
    LabelStyle,
    Layout,
    PositionRangeError,
    PromptPart,
)
from lookout.models.windows.positions import RowLayout
from lookout.models.windows.types import Rows
from lookout.recordings.types import GroupPlan, PrefillSettings, RecordingError


@dataclass(frozen=True, slots=True)
class GroupPlanner:
    """Plans the groups of recordings; keeps no state between calls.

    Attributes:
        layout: The checkpoint's prompt layout.
        settings: How to prefill.
        frames: Maximum number of frames of a recording; labels are wide enough for it.
        seconds: Maximum length of a recording in seconds; labels are wide enough for it.
    """

    layout: Layout
    settings: PrefillSettings = field(default_factory=PrefillSettings)
    frames: int = 999
    seconds: float = 999.0

    def plan(
        self, recording: str, frames: Sequence[EncodedFrame], previous: GroupPlan | None = None
    ) -> GroupPlan:
        """Return the plan of the next group.

        Args:
            recording: The recording's name.
            frames: The group's frames, in time order. Frames without a kept token are omitted from the
                prompt.
            previous: The plan of the previous group; None: this is the recording's first group.

        Raises:
            RecordingError: No frame has a token, or the frames are not in time order.
            PositionRangeError: The positions exceed the model's limit.
        """
        # A frame without tokens would leave only a label and frame marks in the prompt.
        shown = [frame for frame in frames if len(frame.kept)]
        if not shown:
            raise RecordingError(f"{recording}: none of the {len(frames)} frames of a group has a kept token")
        group = 0 if previous is None else previous.group + 1
        # Labels and positions count from the recording's first frame, so that each group continues the last.
        origin = shown[0].slot_us if previous is None else previous.origin_us
        times = [origin, *(frame.slot_us for frame in shown)]
        if any(later < earlier for earlier, later in pairwise(times)):
            raise RecordingError(f"{recording}: the frames of group {group} are not in time order")
        first = 0 if previous is None else previous.first_frame + previous.frames
        parts = self._parts(shown, group, first, origin)
        positions, question = self._positions(shown, parts, previous, origin, first)
        if question >= self.layout.positions.limit:
            raise PositionRangeError(
                f"{recording}: group {group} reaches position {question}, but the model's last position is "
                f"{self.layout.positions.limit - 1}: cut the recording into shorter parts, sample fewer "
                "frames or use a smaller input size"
            )
        competing = self._competing(parts)
        return GroupPlan(
            recording=recording,
            group=group,
            first_frame=first,
            parts=parts,
            token_ids=self._ids(parts),
            positions=positions,
            competing=competing,
            keep=self.settings.keeps(len(competing)),
            question_position=question,
            origin_us=origin,
            before=0 if previous is None else previous.before + previous.rows,
        )

    def plans(self, recording: str, frames: Sequence[EncodedFrame]) -> list[GroupPlan]:
        """Return the plans of all groups of a recording, given all its frames."""
        plans: list[GroupPlan] = []
        for group in grouped(frames, self.settings.group_frames):
            plans.append(self.plan(recording, group, plans[-1] if plans else None))
        return plans

    @property
    def label(self) -> LabelStyle | None:
        """The layout's label style, wide enough for a whole recording; None if the layout has no labels."""
        style = self.layout.label
        if style is None:
            return None
        largest = self.frames if style.counts == "frames" else math.ceil(self.seconds)
        return replace(style, width=max(style.width, len(str(largest))))

    def rows(self, frames: int, tokens: int) -> int:
        """Return the number of rows of a recording with `frames` frames of `tokens` tokens each, including
        the prefix."""
        return len(self.layout.prefix) + frames * (tokens + self._opening + len(self.layout.frame_close))

    @property
    def _opening(self) -> int:
        """Number of rows before a frame's visual tokens: its label and the opening marks."""
        style = self.label
        return (0 if style is None else style.tokens) + len(self.layout.frame_open)

    def _parts(
        self, frames: Sequence[EncodedFrame], group: int, first: int, origin: int
    ) -> tuple[PromptPart, ...]:
        row = 0
        parts: list[PromptPart] = []
        if group == 0:
            row = len(self.layout.prefix)
            parts.append(PromptPart(PREFIX, 0, 0, row, row, row))
        seconds = self.layout.label is not None and self.layout.label.counts == "seconds"
        for number, frame in enumerate(frames):
            visual = row + self._opening
            end = visual + len(frame.kept)
            stop = end + len(self.layout.frame_close)
            label = frame.label_tenths(origin) if seconds else first + number + 1
            parts.append(PromptPart(group, number, row, visual, end, stop, label=label, anchor=frame.anchor))
            row = stop
        return tuple(parts)

    def _positions(
        self,
        frames: Sequence[EncodedFrame],
        parts: Sequence[PromptPart],
        previous: GroupPlan | None,
        origin: int,
        first: int,
    ) -> tuple[Rows, int]:
        """Return the positions of the group's rows, int64 [axes, rows], and the first position after them."""
        rule = self.layout.positions
        edges = np.array([part[2:6] for part in parts if part.block >= 0], dtype=np.int64)
        before, counts, after = np.diff(edges, axis=1).T
        # `place` numbers the group from 0. `continued` then shifts the numbers to follow the previous groups.
        rows = RowLayout(0 if previous is not None else len(self.layout.prefix), before, counts, after)
        positions, question = rule.place(
            rows, frames, compact=self.settings.compact, origin_us=origin, first=first
        )
        if previous is None:
            return positions, question
        return rule.continued(positions, question, len(self.layout.prefix), previous.question_position)

    def _ids(self, parts: Sequence[PromptPart]) -> Rows:
        ids = np.full(parts[-1].stop, VISUAL, dtype=np.int64)
        style = self.label
        for part in parts:
            if part.block < 0:
                ids[: part.stop] = self.layout.prefix
                continue
            label = () if style is None else style.ids(part.label)
            ids[part.start : part.visual_start] = (*label, *self.layout.frame_open)
            ids[part.visual_stop : part.stop] = self.layout.frame_close
        return ids

    def _competing(self, parts: Sequence[PromptPart]) -> Rows:
        """Return the rows whose KV entries may be dropped. The prefix is always kept."""
        # With `keep_text`, only visual rows may be dropped: text takes few rows and states a frame's time.
        visual_only = self.settings.keep_text
        ranges = [
            np.arange(part.visual_start, part.visual_stop)
            if visual_only
            else np.arange(part.start, part.stop)
            for part in parts
            if part.block >= 0
        ]
        rows: Rows = np.concatenate(ranges).astype(np.int64)
        return rows


def grouped(frames: Iterable[EncodedFrame], size: int) -> Iterator[list[EncodedFrame]]:
    """Yield groups of `size` frames; the last group may be smaller. Frames without tokens are omitted."""
    group: list[EncodedFrame] = []
    for frame in frames:
        if len(frame.kept):
            group.append(frame)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
