"""A model of the link over which clusters travel to the device; for machines that have no such link.

Rates are those of the standards: PCI Express 4.0 x16, 16 GT/s a lane with 128b/130b coding, 31.5 GB/s; PCI
Express 5.0 x16, 32 GT/s a lane, 63.0 GB/s; 25 Gigabit Ethernet (IEEE 802.3by), 3.125 GB/s. The time that each
copy costs whatever its size is an assumption: 10 microseconds to start a copy over PCI Express, 50 for a
request over a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A link model: `bytes_per_s`, and `copy_s` seconds for each copy whatever its size."""

    name: str
    bytes_per_s: float
    copy_s: float

    def seconds(self, size: int, copies: int) -> float:
        """Time of `copies` copies of `size` bytes in all."""
        return size / self.bytes_per_s + copies * self.copy_s


LINKS = (
    Link("PCIe 4.0 x16", 31.5e9, 10e-6),
    Link("PCIe 5.0 x16", 63.0e9, 10e-6),
    Link("25 GbE", 3.125e9, 50e-6),
)


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One layer of an answer: its compute time, and what had to be moved.

    `early_*` was predicted and could move while the layer before computed; `late_*` was only known when the
    layer began; `wasted_*` was moved for nothing.
    """

    compute_s: float
    early_bytes: int = 0
    early_copies: int = 0
    late_bytes: int = 0
    late_copies: int = 0
    wasted_bytes: int = 0
    wasted_copies: int = 0


def serial_s(layers: Sequence[LayerWork], link: Link) -> float:
    """Time to the answer when every layer fetches what it needs and then computes."""
    return sum(
        work.compute_s
        + link.seconds(work.early_bytes + work.late_bytes, work.early_copies + work.late_copies)
        for work in layers
    )


def overlapped_s(layers: Sequence[LayerWork], link: Link) -> float:
    """Time to the answer when predicted clusters move while the layer before computes.

    One link, in order of request; a layer starts when the one before has ended and all that it needs has
    arrived.
    """
    free = end = 0.0
    for number, work in enumerate(layers):
        if number:
            begun = end - layers[number - 1].compute_s
            early = link.seconds(work.early_bytes + work.wasted_bytes, work.early_copies + work.wasted_copies)
            free = max(free, begun) + early
        else:
            free += link.seconds(work.early_bytes, work.early_copies)
        if work.late_copies:
            free = max(free, end) + link.seconds(work.late_bytes, work.late_copies)
        end = max(end, free if work.early_copies or work.late_copies else 0.0) + work.compute_s
    return end
