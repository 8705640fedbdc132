"""Decodes only the wanted pictures and those that they need."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import av

from lookout.video.segments.av1 import needed
from lookout.video.segments.container import Video


def decode_wanted(
    video: Video, packets: Sequence[av.Packet], wanted: Container[int]
) -> Iterator[list[av.VideoFrame]]:
    """Yield the frames that each packet completes; the last pictures remain in the decoder.

    H.264, HEVC and MPEG-2/4 decoders can be told to skip pictures that nothing refers to. AV1 frames name
    their references, so packets that no wanted picture depends on are not decoded at all.

    Args:
        video: The video, with its decoder in its initial state.
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
