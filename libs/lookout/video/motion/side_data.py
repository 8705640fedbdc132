"""What a decoded frame carries alongside its pixels."""

from __future__ import annotations

from typing import Any

import av
from av.sidedata.sidedata import SideDataContainer


def side_data(frame: av.VideoFrame, kind: str) -> Any:
    """A frame's side data of one kind (a name of `av.sidedata.sidedata.Type`), or None.

    `frame.side_data` makes the frame refer to itself: its picture, 3 MiB at 1080p, would then stay in memory
    until the garbage collector comes, some hundred frames later.
    """
    return SideDataContainer(frame).get(kind)  # type: ignore[call-arg]  # its stub leaves the frame out
