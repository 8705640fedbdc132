"""Facts about a clip that a player needs, as the API returns them and as kept evidence stores them."""

from __future__ import annotations

import re
from typing import Final

from lookout.services.gateway.media.store import Piece
from lookout.v1.media_pb2 import ClipFacts
from lookout.video.segments.types import ClipSpan, JoinedClip

_CODECS: Final = re.compile(r'video/mp4; codecs="([^"]*)"')


def media_type(clip: JoinedClip) -> str:
    """Return a clip's media type in the form that a browser's `canPlayType` takes."""
    return f'video/mp4; codecs="{clip.codecs}"'


def clip_facts(camera: str, piece: Piece) -> ClipFacts:
    """Return the facts about a camera's clip."""
    clip = piece.clip
    assert clip is not None
    begin_us = clip.spans[0].at_us
    facts = ClipFacts(
        camera=camera,
        codec=clip.codec,
        media_type=media_type(clip),
        width=clip.width,
        height=clip.height,
        frames=clip.frames,
        bytes=len(piece.data),
        seconds=(clip.end_us - begin_us) / 1e6,
        masked=clip.masked,
    )
    for span in clip.spans:
        shown = facts.spans.add(at_s=(span.at_us - begin_us) / 1e6)
        shown.start.FromMicroseconds(span.start_us)
        shown.end.FromMicroseconds(span.end_us)
    return facts


def joined_clip(facts: ClipFacts) -> JoinedClip:
    """Return a clip, without its bytes, made from its facts."""
    match = _CODECS.fullmatch(facts.media_type)
    spans = tuple(
        ClipSpan(round(span.at_s * 1e6), span.start.ToMicroseconds(), span.end.ToMicroseconds())
        for span in facts.spans
    )
    return JoinedClip(
        b"",
        facts.codec,
        match[1] if match else facts.codec,
        facts.width,
        facts.height,
        facts.frames,
        spans,
        round(facts.seconds * 1e6),
        facts.masked,
    )
