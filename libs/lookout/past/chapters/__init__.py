"""A camera's chapters between processes: announced in Redis, served by their holders, read by recall.

Redis is an index that may vanish or lie at any moment: holders say which chapters they have and send the
heads, and whatever Redis gives is compared with the checksums in the heads.
"""

from lookout.past.chapters.announcing import (
    ChapterAnnouncer as ChapterAnnouncer,
    ScenesDirectory as ScenesDirectory,
)
from lookout.past.chapters.service import MemoryLimits as MemoryLimits, MemoryService as MemoryService
