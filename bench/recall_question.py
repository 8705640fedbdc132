"""What `bench.recall` and its asking processes ask."""

from __future__ import annotations

from lookout.past.memory import RetrievalSettings
from lookout.services.recall.asking import PastQuestion

QUESTION = PastQuestion("Is anyone lying on the ground?", frames=64)
RETRIEVAL = RetrievalSettings(frames=64)
