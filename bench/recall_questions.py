"""Asks ten questions a second about a camera's past: `python -m bench.recall_questions ADDRESS`."""

from __future__ import annotations

import sys
import time

import torch

from bench.recall import QUESTION, RETRIEVAL
from lookout.chapters.reading import ChapterSources, Holders
from lookout.engines.transformers import load_engine
from lookout.models import TINY
from lookout.services.recall.asking import Asker


def main(address: str) -> None:
    """Ask until killed; one line once the first question is answered."""
    torch.set_num_threads(1)
    engine = load_engine(TINY, budget_bytes=1)
    asker = Asker(engine, ChapterSources(Holders(), replicas=[address]), retrieval=RETRIEVAL)
    asker.ask("gate", QUESTION)
    print("ready", flush=True)
    while True:
        begun = time.monotonic()
        asker.ask("gate", QUESTION)
        time.sleep(max(0.0, 0.1 - (time.monotonic() - begun)))


if __name__ == "__main__":
    main(sys.argv[1])
