"""A file to which records are appended and synced one by one. A record is written completely or not at
all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from lookout.disk import FILE_MODE, sync_folder, write_all
from lookout.past.memory.errors import HistoryError


class RecordLog:
    """Appends records to a file.

    A write that fails halfway, for example on a full disk, leaves torn bytes. They are cut off at once or, if
    that fails, before the next record. Otherwise, records after the torn bytes would never be read.
    """

    def __init__(self, path: Path, *, fresh: bool = False) -> None:
        """Open the file to append at its end. With `fresh`, the file is emptied first."""
        self.path = path
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if fresh else 0)
        self._handle = os.open(path, flags, FILE_MODE)
        self._size = os.fstat(self._handle).st_size
        self._torn = False
        os.fsync(self._handle)
        sync_folder(path.parent)

    def append(self, record: bytes) -> None:
        """Write a record. When this returns, the record is on the disk.

        Raises:
            HistoryError: The record could not be written; nothing was added to the file.
        """
        try:
            self._cut()
            self._torn = True
            write_all(self._handle, record)
            os.fsync(self._handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                self._cut()  # if this fails, the next `append` cuts
            raise HistoryError(
                f"{self.path}: a record of {len(record)} bytes could not be written ({error.strerror}); "
                "nothing was added"
            ) from error
        self._torn = False
        self._size += len(record)

    def _cut(self) -> None:
        """Remove the torn bytes of a failed append, and move to the end of the file."""
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
