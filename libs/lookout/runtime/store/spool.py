"""The disk tier's files, one per tensor: written completely or not at all, and checked when read."""

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from lookout.disk import private_folder
from lookout.runtime.store.errors import TensorCorruptError
from lookout.runtime.store.labels import Label
from lookout.runtime.store.tensors import Array, checksum, payload, tensor

_MAGIC = b"LKT1"
_HEAD = struct.Struct("<4sI")
# If the length of a label is damaged, no more than this is allocated.
_LONGEST_LABEL = 1 << 16


class Spool:
    """Tensor files in one folder. Each holds a magic number, the label's length, the label as JSON, and the
    bytes.

    A file is written under another name and renamed, so a crash leaves no partial tensor. There is no fsync:
    if a page is lost, the checksum does not match and the tensor is recomputed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        private_folder(folder)

    def write(self, label: Label, array: Array) -> None:
        head = json.dumps(asdict(label)).encode()
        handle, name = tempfile.mkstemp(dir=self.folder, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_HEAD.pack(_MAGIC, len(head)) + head)
                file.write(payload(array))
            os.replace(name, self._path(label.key))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def read(self, label: Label) -> Array:
        """Read the tensor of `label` and check its checksum.

        Raises:
            TensorCorruptError: The file is missing or has other contents.
        """
        try:
            with open(self._path(label.key), "rb") as file:
                if _read_label(file.read(_HEAD.size), file) != label:
                    raise TensorCorruptError(f"the spool file of {label.key} holds another tensor")
                array = tensor(file.read(), label.dtype, label.shape)
        except OSError as error:
            raise TensorCorruptError(f"cannot read the spool file of {label.key}: {error}") from error
        if checksum(array) != label.crc32c:
            raise TensorCorruptError(f"the spool file of {label.key} fails its checksum")
        return array

    def remove(self, key: str) -> None:
        self._path(key).unlink(missing_ok=True)

    def labels(self) -> Iterator[Label]:
        """Yield the labels of the files found, oldest first; unreadable or incomplete files are removed."""
        # No other process uses the folder, so nobody is still writing these files.
        for leftover in self.folder.glob("*.part"):
            leftover.unlink(missing_ok=True)
        for path in sorted(self.folder.glob("*.tensor"), key=lambda p: p.stat().st_mtime_ns):
            try:
                with open(path, "rb") as file:
                    label = _read_label(file.read(_HEAD.size), file)
                    complete = path.stat().st_size == file.tell() + label.length
            except (TensorCorruptError, OSError):
                complete = False
            if complete:
                yield label
            else:
                path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        # A tensor's id contains the camera's name, which may contain slashes or be too long for a file name.
        return self.folder / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.tensor"


def _read_label(head: bytes, file: object) -> Label:
    try:
        magic, size = _HEAD.unpack(head)
        if magic != _MAGIC or size > _LONGEST_LABEL:
            raise ValueError("not a tensor file")
        facts = json.loads(file.read(size))  # type: ignore[attr-defined]
        return Label(**{**facts, "shape": tuple(facts["shape"])})
    except (ValueError, TypeError, KeyError, struct.error) as error:
        raise TensorCorruptError(f"not a tensor file: {error}") from error
