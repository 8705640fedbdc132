"""Checks of chapters that come from outside this process: from holders, and from the durable tier."""

from __future__ import annotations

from collections.abc import Callable

from lookout.past.memory import Chapter, HistoryError
from lookout.past.memory.catalogue import Head
from lookout.past.memory.chapters import chapter_of, chapter_order
from lookout.wire import is_camera_id


def checked_chapter(unpack: Callable[[], Head], is_it: Callable[[str, str], bool], where: str) -> Chapter:
    """Return the chapter that a head describes, after checking that it is the requested one.

    Args:
        unpack: Reads the head.
        is_it: Called with the head's camera and chapter name; returns whether they are the requested ones.
        where: Where the head comes from; error messages begin with it.

    Raises:
        HistoryError: The head is damaged, inconsistent, or another chapter's.
    """
    try:
        chapter = chapter_of(unpack())
        chapter_order(chapter)
        consistent = len(chapter.head.times_us) == len(chapter.head.present) > 0
        consistent &= len(chapter.head.scenes) == chapter.head.shape.layers
        consistent &= type(chapter.head.version) is int
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise HistoryError(f"{where}: the head of a chapter cannot be read: {error!r}") from error
    if not consistent:
        raise HistoryError(f"{where}: the head of a chapter is inconsistent")
    camera = str(chapter.head.about.get("camera"))
    if (
        not is_camera_id(camera)
        or chapter.name.rpartition("/")[0] != camera
        or not is_it(camera, chapter.name)
    ):
        raise HistoryError(f"{where}: received the head of another chapter, {chapter.name!r}")
    return chapter
