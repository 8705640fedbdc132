"""Records appended to one file and synced one by one: a record is there completely or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from lookout.disk import FILE_MODE, sync_folder, write_all
from lookout.past.memory.errors import HistoryError


class RecordLog:
    """The end of a file of records.

    A write that fails halfway (a full disk) leaves torn bytes. They are cut off at once or, if even that
    fails, before the next record: nothing may be appended after them, since nothing after them is read.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """Continue at the end of the file; `fresh`: begin it again."""
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if fresh else 0)
        self._handle = os.open(path, flags, FILE_MODE)
        self._size = os.fstat(self._handle).st_size
        self._torn = False
        os.fsync(self._handle)
        sync_folder(path.parent)

    def append(self, record: bytes) -> None:
        """Write a record; it is on the disk when this returns.

        Raises:
            HistoryError: It could not be written; the file is as before.
        """
        try:
            self._cut()
            self._torn = True
            write_all(self._handle, record)
            os.fsync(self._handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._cut()  # or the next record does
            raise HistoryError(
                f"{self.path}: a record of {len(record)} bytes could not be written ({error.strerror}); "
                "nothing was added"
            ) from error
        self._torn = False
        self._size += len(record)

    def _cut(self) -> None:
        """Remove what a failed append left."""
        if self._torn:
            os.ftruncate(self._handle, self._size)
            os.fsync(self._handle)
            self._torn = False
        os.lseek(self._handle, self._size, os.SEEK_SET)

    def cut_at(self, size: int) -> None:
        """Keep only the first `size` bytes.

        Raises:
            OSError: The file could not be cut.
        """
        self._size, self._torn = size, True
        self._cut()

    def close(self) -> None:
        """Close the file."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def __del__(self) -> None:
        self.close()
