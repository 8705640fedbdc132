"""Decoding without the pictures that are neither wanted nor needed for wanted ones."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import av

from lookout.video.segments.av1 import needed
from lookout.video.segments.container import Video


def decode_wanted(
    video: Video, packets: Sequence[av.Packet], wanted: Container[int]
) -> Iterator[list[av.VideoFrame]]:
    """The frames that each packet completes; the last pictures still wait in the decoder.

    H.264, HEVC and MPEG-2/4 decoders leave pictures out that nothing refers to when told so. AV1 frames name
    what they refer to, so that packets on which no wanted picture rests are not fed at all.

    Args:
        video: Its decoder is fresh.
        packets: In decoding order, from a keyframe on.
        wanted: Time stamps of the wanted pictures.
    """
    if video.codec == "av1":
        targets = [packet.pts in wanted for packet in packets]
        decoded = needed([bytes(packet) for packet in packets], targets, video.context.extradata)
        for packet, keep in zip(packets, decoded, strict=True):
            if keep:
                yield video.decode(packet)
        return
    nonref: bool | None = None
    for packet in packets:
        spare = not packet.is_keyframe and packet.pts not in wanted
        if spare is not nonref:
            video.context.skip_frame = "NONREF" if spare else "DEFAULT"
            nonref = spare
        yield video.decode(packet)
