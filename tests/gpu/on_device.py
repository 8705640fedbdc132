"""A pytest plugin: engines and towers that name no device load on LOOKOUT_TEST_DEVICE, in float32: oracles
compare the last bits."""

from __future__ import annotations

import os
from types import FunctionType

import lookout.models.engines
from lookout.models.engines.transformers import engine
from lookout.models.families import loading


def pytest_configure() -> None:
    """Change the default of the loaders, wherever their names have been imported to."""
    use(os.environ["LOOKOUT_TEST_DEVICE"])


def use(device: str) -> None:
    """Make a device the default of both engine loaders and of the towers' loader."""
    for loader in (engine.load_engine, lookout.models.engines.load_engine):
        assert isinstance(loader, FunctionType)
        assert loader.__defaults__ is not None
        assert len(loader.__defaults__) == 2
        loader.__defaults__ = (device, "float32")
    assert isinstance(loading.load_tower, FunctionType)
    assert loading.load_tower.__kwdefaults__ is not None
    loading.load_tower.__kwdefaults__ |= {"device": device, "dtype": "float32"}
