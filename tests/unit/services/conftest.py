"""What the services' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lookout.models.engines import load_engine
from lookout.recordings.analysis import Analyzer
from lookout.services.prefill.batcher import Batcher
from tests.tiny_models import checkpoint


@pytest.fixture(scope="module")
def batcher() -> Iterator[Batcher]:
    batcher = Batcher(load_engine(checkpoint("internvl")), 8)
    yield batcher
    batcher.close()


@pytest.fixture(scope="module")
def analyzer() -> Iterator[Analyzer]:
    """The model of recordings. What needs its digest alone reads no weights of it."""
    with Analyzer(checkpoint("internvl")) as model:
        yield model
