"""Two sandboxed decoders that differ only in what a mask hides."""

from __future__ import annotations

from collections.abc import Iterator

from lookout.video.sandbox import SandboxPool, SandboxSettings

Pools = tuple[SandboxPool, SandboxPool]


def decoders() -> Iterator[Pools]:
    """A decoder as it is, and one with other pixels and vectors where `tests.flipping.MASK` hides them."""
    plain = SandboxSettings(modules=("lookout.pruning",))
    other = SandboxSettings(modules=("lookout.pruning", "tests.flip_now"))
    with SandboxPool(1, plain) as first, SandboxPool(1, other) as second:
        yield first, second
