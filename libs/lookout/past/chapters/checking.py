"""Checks of chapters that come from outside this process: from holders, and from the durable tier."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from lookout.past.memory import Chapter, HistoryError
from lookout.past.memory.catalogue import Head
from lookout.past.memory.chapters import chapter_of, chapter_order
from lookout.wire import is_camera_id

FORMAT: Final = 1
"""Format of the manifest; raise it when older readers could not read what the manifest names."""
_LARGEST: Final = 2**53
_FILES: Final = 4096


def _plain(name: str) -> str:
    """Check that a file's name stays within its folder."""
    if not name.isascii() or not name.isprintable() or "/" in name or name in ("", ".", ".."):
        raise ValueError(f"{name!r} is not a file's name")
    return name


_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_Time = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
_Name = Annotated[str, Field(max_length=255), AfterValidator(_plain)]


class _File(BaseModel):
    model_config = ConfigDict(strict=True)
    bytes: _Count
    checksum: str = Field(max_length=128)


class _Manifest(BaseModel):
    model_config = ConfigDict(strict=True)
    format: int = Field(ge=FORMAT, le=FORMAT)
    name: str
    camera: str
    version: _Count
    begin_us: _Time
    end_us: _Time
    bytes: _Count
    head: _Name
    prefix: str = Field("", max_length=128)
    files: dict[_Name, _File] = Field(max_length=_FILES)

    @model_validator(mode="after")
    def _agrees(self) -> _Manifest:
        camera, _, serial = self.name.rpartition("/")
        if not is_camera_id(self.camera) or camera != self.camera:
            raise ValueError(f"chapter {self.name!r} is not one of camera {self.camera!r}")
        _plain(serial)
        if self.head not in self.files:
            raise ValueError("its head is not among its files")
        return self


def read_manifest(data: bytes) -> dict[str, Any]:
    """Parse and validate a chapter's manifest: its numbers, its file names, and that it is its camera's.

    Raises:
        HistoryError: The manifest is invalid.
    """
    try:
        return _Manifest.model_validate(json.loads(data)).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise HistoryError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise HistoryError(f"not a manifest: {error}") from None


def checked_chapter(unpack: Callable[[], Head], name: str, camera: str, where: str) -> Chapter:
    """Return the chapter of a head, if it is the one that was asked for.

    Args:
        unpack: Reads the head.
        name: Name of the chapter.
        camera: Id of its camera.
        where: The place it comes from, for errors.

    Raises:
        HistoryError: The head is damaged, contradicts itself or is another chapter's.
    """
    try:
        chapter = chapter_of(unpack())
        chapter_order(chapter)
        consistent = len(chapter.head.times_us) == len(chapter.head.present) > 0
        consistent &= len(chapter.head.scenes) == chapter.head.shape.layers
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise HistoryError(f"{where}: the head of chapter {name} cannot be read: {error!r}") from error
    if not consistent:
        raise HistoryError(f"{where}: the head of chapter {name} contradicts itself")
    if chapter.name != name or str(chapter.head.about.get("camera")) != camera:
        raise HistoryError(f"{where}: the head of chapter {name} is another chapter's")
    return chapter
