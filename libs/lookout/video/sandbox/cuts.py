"""Keeps a decoder process's cuts in progress, so that a request for a file's next pieces continues where the
last request stopped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO

from lookout.video.segments.cutting import cut
from lookout.video.segments.types import CodecError, CutRequest, Reason, Segment

#: maximum number of files that stay open; for more pieces of a closed file, it is read again from its
#: beginning
MOST_OPEN = 32


@dataclass(slots=True)
class _Cut:
    pieces: Iterator[Segment]
    position: int = 0
    error: CodecError | None = None


class Cuts:
    """The files that are being cut. They only save time, because any process that is given the file returns
    the same pieces.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, float, int], _Cut] = OrderedDict()

    def pieces(self, request: CutRequest, file: BinaryIO | None) -> tuple[Segment, ...]:
        """Return the requested pieces; empty at the file's end.

        Args:
            file: The file of `request.path`, at its beginning; None if it was passed with an earlier request.

        Raises:
            CodecError: The next piece cannot be cut.
        """
        key = (request.path, request.target_s, request.max_bytes)
        # Removed while it is used, so that a failed cut is not continued.
        going = self._open.pop(key, None)
        if going is not None and going.position == request.first:
            if file is not None:
                file.close()
        elif file is not None:
            going = _begin(request, file)
        else:
            raise CodecError(Reason.REQUEST, f"no file was given for {request.path}")
        pieces = _take(going, request.limit)
        if going.error is not None and not pieces:
            raise going.error
        if pieces:
            self._open[key] = going
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        return pieces


def _begin(request: CutRequest, file: BinaryIO) -> _Cut:
    pieces = _read(request, file)
    skipped = sum(1 for _ in islice(pieces, request.first))
    return _Cut(pieces, skipped)


def _read(request: CutRequest, file: BinaryIO) -> Iterator[Segment]:
    why: list[str] = []
    try:
        with file:
            yield from cut(
                file, target_s=request.target_s, max_bytes=request.max_bytes, broken_off=why.append
            )
    except OSError as error:
        raise CodecError(Reason.UNREADABLE, f"cannot be read ({error.strerror or error})") from None
    if why:
        raise CodecError(Reason.UNREADABLE, f"the file breaks off: {why[0]}")


def _take(going: _Cut, limit: int) -> tuple[Segment, ...]:
    pieces: list[Segment] = []
    try:
        while sum(len(piece.data) for piece in pieces) < limit and (piece := next(going.pieces, None)):
            pieces.append(piece)
    except CodecError as error:
        going.error = error
    going.position += len(pieces)
    return tuple(pieces)
