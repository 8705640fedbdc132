"""What the services' tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lookout.engines import load_engine
from lookout.services.prefill.batcher import Batcher
from tests.tiny_models import checkpoint


@pytest.fixture(scope="module")
def batcher() -> Iterator[Batcher]:
    batcher = Batcher(load_engine(checkpoint("internvl")), 8)
    yield batcher
    batcher.close()
