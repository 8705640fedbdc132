"""Opens recordings for parts, one at a time. A recording stays open for neighbouring parts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from lookout.recordings.jobs import OpenSource, Sources
from lookout.v1.recordings_pb2 import RecordingPart
from lookout.video.files import RecordingReader
from lookout.video.sandbox import open_recording


class OpenedRecording:
    """The last part's recording, kept open for neighbouring parts.

    Args:
        sources: Reads recordings.
        decoders: Number of decoding processes; None: as many as this process may use cores.
        idle_s: Seconds without a part after which the recording is closed.
    """

    def __init__(self, sources: Sources, decoders: int | None, idle_s: float = 60.0) -> None:
        self._sources, self.decoders = sources, decoders
        self._turn = threading.Lock()
        self._idle_s, self._idle = idle_s, threading.Timer(idle_s, self._rest)
        self._opened = ExitStack()
        self.reader: tuple[OpenSource, RecordingReader] | None = None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let only one part run at a time, because a part uses every core or the GPU."""
        with self._turn:
            self._idle.cancel()
            try:
                yield
            finally:
                self._idle = threading.Timer(self._idle_s, self._rest)
                self._idle.daemon = True
                self._idle.start()

    def open(self, part: RecordingPart) -> tuple[OpenSource, RecordingReader]:
        """Return a part's recording, opened if it is not open already.

        Raises:
            SourceError: The recording may not be read, or has changed.
            CodecError: The recording cannot be decoded.
        """
        if self.reader is not None:
            source, reader = self.reader
            if (source.uri, source.mark) == (part.uri, part.mark):
                source.check()
                return source, reader
            self.close()
        source = self._opened.enter_context(self._sources.open(part.uri, part.mark, part.job))
        reader = self._opened.enter_context(open_recording(source.data, sandbox=True, workers=self.decoders))
        self.reader = source, reader
        return source, reader

    def close(self) -> None:
        """End the decoder processes, and remove local copies of the recording."""
        self._idle.cancel()
        self.reader = None
        self._opened.close()

    def _rest(self) -> None:
        """Close the recording after `idle_s` without parts."""
        with self._turn:
            self.close()
