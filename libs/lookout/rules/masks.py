"""Decides which privacy masks apply to a picture. All code that reads a camera's pixels asks this module.

The rule has two parts:

- Decode hides what any version hides that was in force between the segment's filming and its decoding.
  Decode's records list these polygons by their fingerprints.
- Code that shows a picture later hides what the picture's record lists, and also what the version in force
  now hides.

So a new version covers older footage as well, and what was filmed under a version stays hidden after that
version is lifted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Final

from lookout.rules.types import RuleError
from lookout.v1.masks_pb2 import CameraMasks, MaskVersion
from lookout.v1.watches_pb2 import Zone
from lookout.video.motion.hiding import WHOLE, MaskLayer, PictureMask, Polygon
from lookout.wire import WireError, from_json
from lookout.wire.ranges import RangeError, check_ranges

#: microseconds for which an ended version still applies, because segments arrive late and clocks differ
GRACE_US: Final = 120_000_000
#: stands for the fingerprints of versions that a record no longer has
_FORGOTTEN: Final = "forgotten"


@dataclass(frozen=True, slots=True)
class AppliedMask:
    """The mask of a picture.

    Attributes:
        names: Fingerprints of the layers.
        mask: The layers; None: nothing is hidden.
    """

    names: tuple[str, ...] = ()
    mask: PictureMask | None = None


class Masks:
    """The current masks of all cameras, from their topic. Thread-safe.

    Args:
        newest: Returns the newest record of a camera in masks.v1; None: the camera never had one.
    """

    def __init__(self, newest: Callable[[str], bytes | None] = lambda _: None) -> None:
        self._newest = newest
        self._parsed: dict[str, tuple[bytes, _CameraMasks]] = {}

    def known(self, camera: str) -> bool:
        """Whether a camera ever had a mask, even if it has been lifted since."""
        return self._newest(camera) is not None

    def filmed(self, camera: str, begin_us: int) -> AppliedMask:
        """Return the mask that decode applies to a segment.

        Args:
            camera: The camera's id.
            begin_us: When the segment was filmed, Unix microseconds.
        """
        return self._masks(camera).since(begin_us)

    def again(self, camera: str, names: Iterable[str]) -> AppliedMask | None:
        """Return the mask with which to decode a segment again, so that it gives the same pixels.

        Args:
            camera: The camera's id.
            names: The fingerprints in the segment's record.

        Returns:
            The mask; None if the pixels must not be produced again, because the record lists a mask that is
                no longer known, or lacks the mask in force now.
        """
        masks, named = self._masks(camera), tuple(names)
        if masks.lacks(named) or not set(named) <= masks.layers.keys():
            return None
        return masks.named(named)

    def shown(self, camera: str, names: Iterable[str]) -> AppliedMask:
        """Return the mask for a picture that is shown now.

        Args:
            camera: The camera's id.
            names: The fingerprints in the picture's record; an unknown one hides everything.
        """
        masks = self._masks(camera)
        return masks.named(tuple(sorted({*names, *masks.current})))

    def lacks(self, camera: str, names: Iterable[str]) -> bool:
        """Whether something was computed without the mask that is in force now.

        Args:
            camera: The camera's id.
            names: The fingerprints in the record of what was computed.
        """
        return self._masks(camera).lacks(names)

    def since_us(self, camera: str) -> int:
        """Return the time since which everything that is hidden now has been hidden, in Unix microseconds; 0:
        nothing is hidden."""
        return self._masks(camera).current_since_us

    def _masks(self, camera: str) -> _CameraMasks:
        value = self._newest(camera)
        if value is None:
            return _NOTHING
        before = self._parsed.get(camera)
        if before is None or before[0] != value:
            before = self._parsed[camera] = value, _CameraMasks.of(read_masks(camera, value))
        return before[1]


@dataclass(frozen=True, slots=True)
class _CameraMasks:
    """One camera's masks.

    Attributes:
        layers: What each fingerprint hides.
        spans: Fingerprints with the times at which their versions ended, Unix microseconds.
        current: Fingerprints of the version in force.
        current_since_us: Since when all of `current` have applied, Unix microseconds.
        begins_us: Begin of the oldest known version, Unix microseconds. Footage from before it may have been
            hidden by earlier versions. 0: all versions are known.
    """

    layers: dict[str, MaskLayer]
    spans: tuple[tuple[str, int], ...] = ()
    current: tuple[str, ...] = ()
    current_since_us: int = 0
    begins_us: int = 0

    @classmethod
    def of(cls, masks: CameraMasks) -> _CameraMasks:
        """Build the masks from a record."""
        versions = [(version.since.ToMicroseconds(), layers_of(version)) for version in masks.versions]
        spans = tuple(
            (name, ended_us) for (_, layers), (ended_us, _) in pairwise(versions) for name in layers
        )
        current = tuple(versions[-1][1])
        since_us = 0
        if current:
            # Go back to the oldest version since which no current layer was ever missing.
            holding = takewhile(lambda version: set(current) <= version[1].keys(), reversed(versions))
            since_us = list(holding)[-1][0]
        all_layers = {name: layer for _, layers in versions for name, layer in layers.items()}
        begins_us = versions[0][0] if masks.versions[0].version > 1 else 0
        return cls(all_layers, spans, current, since_us, begins_us)

    def since(self, begin_us: int) -> AppliedMask:
        """Return a mask of every layer in force at any moment since `begin_us`, or up to `GRACE_US` before
        it. It hides everything if versions from before the oldest known one may have applied."""
        ended = [name for name, end_us in self.spans if begin_us < end_us + GRACE_US]
        names = sorted({*ended, *self.current})
        return self.named((*names, _FORGOTTEN) if begin_us < self.begins_us else tuple(names))

    def named(self, names: tuple[str, ...]) -> AppliedMask:
        """Return a mask of these layers; an unknown layer hides everything."""
        if not names:
            return AppliedMask()
        return AppliedMask(names, PictureMask(tuple(self.layers.get(name, WHOLE) for name in names)))

    def lacks(self, names: Iterable[str]) -> bool:
        """Whether `names` lack a layer of the version in force."""
        return not set(self.current) <= set(names)


_NOTHING: Final = _CameraMasks({})


def layers_of(version: MaskVersion) -> dict[str, MaskLayer]:
    """Return what a version hides, by fingerprint: one layer for each polygon to hide, and one for all
    polygons to keep.

    A fingerprint depends only on the points, so versions that share a polygon share its fingerprint.

    Raises:
        RuleError: A polygon is invalid; the text says which one.
    """
    layers: dict[str, MaskLayer] = {}
    for place, zone in enumerate(version.hide):
        layer = _layer(f"hide[{place}]", [zone], hides=True)
        layers[_fingerprint(layer)] = layer
    for place, zone in enumerate(version.keep):
        _layer(f"keep[{place}]", [zone], hides=False)
    if version.keep:
        layer = _layer("keep", version.keep, hides=False)
        layers[_fingerprint(layer)] = layer
    return layers


def _layer(name: str, zones: Iterable[Zone], *, hides: bool) -> MaskLayer:
    polygons = _polygons(zones)
    try:
        return MaskLayer(hide=polygons) if hides else MaskLayer(keep=polygons)
    except ValueError as error:
        raise RuleError(f"{name}: {error}") from None


def _fingerprint(layer: MaskLayer) -> str:
    return hashlib.blake2b(repr((layer.hide, layer.keep)).encode(), digest_size=8).hexdigest()


def _polygons(zones: Iterable[Zone]) -> tuple[Polygon, ...]:
    return tuple(tuple((point.x, point.y) for point in zone.points) for zone in zones)


def read_masks(key: str, value: bytes) -> CameraMasks:
    """Parse and check the masks in a record of masks.v1.

    Args:
        key: The record's key, which is the camera's id.
        value: The record's value.

    Raises:
        RuleError: The masks are invalid; the text names the field and why.
    """
    try:
        masks = from_json(value, CameraMasks)
        check_ranges(masks)
    except (WireError, RangeError) as error:
        raise RuleError(str(error)) from error
    if masks.camera != key:
        raise RuleError(f"the record's key must be its camera, {masks.camera[:40]!r}")
    check_masks(masks)
    return masks


def check_masks(masks: CameraMasks) -> None:
    """Check that masks are valid.

    Raises:
        RuleError: The masks are invalid; the text names the field and why.
    """
    if not masks.versions:
        raise RuleError("versions: give at least one; to hide nothing, give a version without polygons")
    for place, version in enumerate(masks.versions):
        if version.version != masks.versions[0].version + place or not version.version:
            raise RuleError(f"versions[{place}]: version {version.version} does not follow the previous one")
        try:
            layers_of(version)
        except RuleError as error:
            raise RuleError(f"versions[{place}]: {error}") from None
