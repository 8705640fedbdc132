"""Shares cameras' chapters between processes. Holders announce them in Redis and serve them; recall reads
them.

Redis is only an index, which may be lost or wrong at any time. The list of chapters and their heads come from
the holders. Data from Redis are used only if they match the checksums in the heads.
"""

from lookout.past.chapters.announcing import (
    ChapterAnnouncer as ChapterAnnouncer,
    ScenesDirectory as ScenesDirectory,
)
from lookout.past.chapters.service import MemoryLimits as MemoryLimits, MemoryService as MemoryService
