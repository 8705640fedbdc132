"""What a camera usually shows: reference pictures, and the hours at which each was seen."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from lookout.video.health.looks import CELLS, DETAIL_STEP, F32, U8

#: maximum number of reference pictures of a camera: by day, at dusk, by night, with the lights on ...
PICTURES = 6
#: seconds after which a picture, or an hour, counts as known
WARM_S = 60.0
#: seconds per step of a known picture, so that it follows daylight but hardly a lens that slowly loses focus
_STEP_S = 8.0
#: similarity below which a view is learned as a new picture
ALIKE = 0.7
HOURS = 24
HOUR_BYTES = 5
# Columns of the table of hours: bits of the pictures seen; seconds learned; days on which the hour was seen;
# low end of the change from sample to sample, as a logarithm; low end of the mean brightness.
_SEEN, _SECONDS, _DAYS, _CHANGE, _DARKEST = range(HOUR_BYTES)
#: smallest change in the table of hours, grey levels, and the steps of its logarithm for a factor of two
_LEAST_CHANGE, _OCTAVE = 1 / 64, 32
#: detail in grey levels below which a cell is flat, so that it has no detail to lose
FLAT = 1.5


@dataclass(frozen=True, slots=True)
class ReferencePicture:
    """A reference picture: a running median of observed pictures, which moves in whole steps.

    Attributes:
        luma: uint8 [CELLS, CELLS]: brightness, grey levels.
        detail: uint8 [CELLS, CELLS]: detail, in steps of `DETAIL_STEP`.
        seconds: Seconds of stream from which it was learned.
    """

    luma: U8
    detail: U8
    seconds: float

    @classmethod
    def of(cls, luma: F32, detail: F32, seconds: float) -> ReferencePicture:
        """Return the reference picture of a first observation."""
        return cls(_bytes(luma), _bytes(detail / DETAIL_STEP), seconds)

    def learned(self, luma: F32, detail: F32, seconds: float) -> ReferencePicture:
        """Return the picture updated with a segment. A known picture changes by at most one step every
        `_STEP_S` seconds, so that passing objects leave no trace.
        """
        until = self.seconds + seconds
        if until > WARM_S and until // _STEP_S == self.seconds // _STEP_S:
            return ReferencePicture(self.luma, self.detail, until)
        return ReferencePicture(_step(self.luma, luma), _step(self.detail, detail / DETAIL_STEP), until)


@dataclass(frozen=True, slots=True)
class Match:
    """Comparison of a view with a reference picture.

    Attributes:
        similarity: Correlation of brightness or of detail, whichever is larger; -1 to 1. A change of
            light affects only one of the two.
        coarse: Correlation of brightness alone.
        detail: Share of the reference's detail that the view has, 0 to 1.
        lost: Share of the reference's textured cells that have lost their detail.
    """

    similarity: float
    coarse: float
    detail: float
    lost: float


def compare(luma: F32, detail: F32, picture: ReferencePicture) -> Match:
    """Compare a view with a reference picture."""
    before = picture.detail * np.float32(DETAIL_STEP)
    coarse = correlation(luma, picture.luma)
    textured = before > FLAT
    visible = detail[textured]
    usual = before[textured]
    share, lost = 1.0, 0.0
    if len(usual):
        share = float(np.minimum(visible, usual).sum() / usual.sum())
        lost = np.count_nonzero(visible < 0.4 * usual) / len(usual)
    fine = correlation(np.sqrt(detail), np.sqrt(before))
    return Match(max(coarse, fine), coarse, share, lost)


def correlation(one: F32, other: F32 | U8) -> float:
    """Return Pearson's correlation of two planes; 0 if one of them is constant."""
    centred = (one - np.add.reduce(one, axis=None) / np.float32(one.size)).ravel()
    reference = (other - np.add.reduce(other, axis=None, dtype=np.float32) / np.float32(other.size)).ravel()
    scale = math.sqrt(float(centred @ centred) * float(reference @ reference))
    return float(centred @ reference) / scale if scale > 1e-6 else 0.0


def _no_hours() -> U8:
    return np.zeros((HOURS, HOUR_BYTES), np.uint8)


@dataclass(frozen=True, slots=True)
class Usual:
    """What a camera usually shows.

    Attributes:
        pictures: Reference pictures; a picture's index is its number.
        hours: uint8 [24, HOUR_BYTES], by hour of the day (UTC).
        hour: Hour of the newest segment, counted since 1970; -1 before the first.
    """

    pictures: tuple[ReferencePicture, ...] = ()
    hours: U8 = field(default_factory=_no_hours)
    hour: int = -1

    @property
    def of_day(self) -> int:
        """Hour of the day (UTC) of the newest segment."""
        return self.hour % HOURS

    def known(self, hour: int) -> bool:
        """Whether the camera has been seen at this hour for long enough."""
        return float(self.hours[hour, _SECONDS]) >= WARM_S

    def days(self, hour: int) -> int:
        """Return the number of days on which the camera was seen at this hour."""
        return int(self.hours[hour, _DAYS])

    def change(self, hour: int) -> float | None:
        """Return the low end of the change between samples at this hour, grey levels; None if it is not
        known."""
        step = int(self.hours[hour, _CHANGE])
        return _LEAST_CHANGE * 2 ** ((step - 1) / _OCTAVE) if step and self.known(hour) else None

    def darkest(self, hour: int) -> int:
        """Return the low end of the mean brightness at this hour and its two neighbours, grey levels."""
        return min(int(self.hours[near, _DARKEST]) for near in _near(hour) if self.known(near))

    def best(self, luma: F32, detail: F32, hour: int) -> tuple[int, Match] | None:
        """Return the number and match of the reference picture most like a view, from this hour or its two
        neighbours; None if no known picture belongs to these hours.
        """
        bits = int(np.bitwise_or.reduce(self.hours[_near(hour), _SEEN]))
        matches = [
            (number, compare(luma, detail, picture))
            for number, picture in enumerate(self.pictures)
            if bits >> number & 1 and picture.seconds >= WARM_S
        ]
        return max(matches, key=lambda match: match[1].similarity + match[1].detail, default=None)

    def at(self, hour: int) -> Usual:
        """Return this with the hour set, counted since 1970; a new hour adds a day to its hour of the day."""
        if hour == self.hour:
            return self
        hours = self.hours.copy()
        row = hours[hour % HOURS]
        row[_DAYS] = min(255, int(row[_DAYS]) + 1)
        return replace(self, hours=hours, hour=hour)

    def learned(
        self,
        luma: F32,
        detail: F32,
        seconds: float,
        change: float | None,
        nearest: tuple[int, Match] | None = None,
    ) -> Usual:
        """Return the usual views, updated with a segment without faults.

        Args:
            luma: See `Looks.middle`.
            detail: See `Looks.middle`.
            seconds: Length of the segment.
            change: See `Looks.change`; None leaves the usual change as it is.
            nearest: Result of `best`; if its picture is similar enough, no other picture is compared.
        """
        pictures, hours = list(self.pictures), self.hours.copy()
        number = self._picture(luma, detail, nearest)
        if number is not None:
            pictures[number] = pictures[number].learned(luma, detail, seconds)
        else:
            number = len(pictures)
            pictures.append(ReferencePicture.of(luma, detail, seconds))
        row = hours[self.of_day]
        row[_SEEN] |= 1 << number
        row[_SECONDS] = min(255, int(row[_SECONDS]) + max(1, round(seconds)))
        row[_DARKEST] = _lower(int(row[_DARKEST]), max(1, round(float(luma.mean()))))
        if change is not None:
            step = 1 + round(_OCTAVE * math.log2(max(change, _LEAST_CHANGE) / _LEAST_CHANGE))
            row[_CHANGE] = _lower(int(row[_CHANGE]), min(255, step))
        return replace(self, pictures=tuple(pictures), hours=hours)

    def _picture(self, luma: F32, detail: F32, nearest: tuple[int, Match] | None) -> int | None:
        """Return the number of the reference picture to update with a view; None to add a new one."""
        if nearest is not None and nearest[1].similarity >= ALIKE:
            return nearest[0]
        alike = [compare(luma, detail, picture).similarity for picture in self.pictures]
        number = int(np.argmax(alike)) if alike else None
        if number is None or (alike[number] < ALIKE and len(alike) < PICTURES):
            return None
        return number

    def adopted(self, luma: F32, detail: F32) -> Usual:
        """Return the usual views with all reference pictures, at every hour, replaced by the view that a
        moved camera has shown for a long time.
        """
        hours = self.hours.copy()
        hours[:, _SEEN] = 1
        return replace(self, pictures=(ReferencePicture.of(luma, detail, WARM_S),), hours=hours)


def _near(hour: int) -> list[int]:
    return [(hour - 1) % HOURS, hour, (hour + 1) % HOURS]


def _lower(level: int, value: int) -> int:
    """Return the updated low end of values, which falls fast and rises slowly; 0 means no value yet."""
    if not level or value >= level:
        return min(value, level + 1) if level else value
    return level - max(1, (level - value) // 5)


def _bytes(plane: F32) -> U8:
    return np.clip(np.rint(plane), 0, 255).astype(np.uint8)


def _step(plane: U8, target: F32) -> U8:
    stepped: U8 = (plane + np.sign(np.rint(np.minimum(target, 255)) - plane)).astype(np.uint8)
    return stepped


assert CELLS * CELLS == 256  # the length of a plane in a checkpoint (`HealthPicture` in state.proto)
