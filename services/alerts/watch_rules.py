"""Finds the rule for a verdict in the table of watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from lookout.rules import Rule, RuleError, read_watch
from lookout.runtime.worker.tables import PastRow
from lookout.v1.verdicts_pb2 import Verdict
from lookout.v1.watches_pb2 import Watch

#: maximum number of parsed watch versions in the cache
VERSIONS = 16_384


class WatchRules:
    """Rules by watch and version. Thread-safe.

    watches.v1 keeps a replaced or deleted value for as long as verdicts.v1 keeps its records, so it holds the
    version of every verdict that can still be read.

    Args:
        past: Returns the newest values of a key with their offsets, oldest first, including replaced and
            deleted ones.
        wait: Waits until watches.v1 has been read up to an offset; raises TransientError on timeout.
    """

    def __init__(
        self, past: Callable[[str], Sequence[PastRow]], wait: Callable[[int], object] = lambda offset: None
    ) -> None:
        self._past = past
        self._wait = wait
        self._read = lru_cache(maxsize=VERSIONS)(_read)

    def rule_of(self, verdict: Verdict) -> Rule | None:
        """Return the rule of a verdict.

        Args:
            verdict: The verdict. If it lacks `watches_offset`, it carries its own rule.

        Returns:
            The rule; None if the verdict carries its own.

        Raises:
            RuleError: The watch never had this version.
            TransientError: watches.v1 has not been read up to `watches_offset` yet.
        """
        if not verdict.HasField("watches_offset"):
            return None
        self._wait(verdict.watches_offset)
        for row in reversed(self._past(verdict.watch)):
            watch = self._read(verdict.watch, row.value)
            if watch is None or row.offset >= verdict.watches_offset:
                continue
            if watch[0].version == verdict.watch_version:
                return watch[1]
        raise RuleError(f"watch {verdict.watch!r} has no version {verdict.watch_version}")

    def question_of(self, watch: str) -> str:
        """Return the newest question of a watch; empty if none is known."""
        for row in reversed(self._past(watch)):
            read = self._read(watch, row.value)
            if read is not None:
                return read[0].question
        return ""


def _read(key: str, value: bytes) -> tuple[Watch, Rule] | None:
    try:
        return read_watch(key, value)
    except RuleError:
        return None
