"""Playing a stream: which blocks are a window, and why a window has no answer."""

from lookout.streams.window import MAX_DAMAGE, BlockFacts, Cause, NoAnswer, NoAnswerKind, WindowRule

__all__ = ["MAX_DAMAGE", "BlockFacts", "Cause", "NoAnswer", "NoAnswerKind", "WindowRule"]
