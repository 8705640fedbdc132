"""Access to the side data of decoded frames."""

from __future__ import annotations

from typing import Any

import av
from av.sidedata.sidedata import SideDataContainer


def side_data(frame: av.VideoFrame, kind: str) -> Any:
    """Return a frame's side data of one kind (a name of `av.sidedata.sidedata.Type`), or None.

    `frame.side_data` is not used: it makes the frame refer to itself, so its picture, 3 MiB at 1080p, would
    stay in memory until the garbage collector runs, some hundred frames later.
    """
    return SideDataContainer(frame).get(kind)  # type: ignore[call-arg]  # its stub leaves the frame out
