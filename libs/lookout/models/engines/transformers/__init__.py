"""Runs window plans on the stock transformers modules: the reference engine, and the one for small
installations."""

from lookout.models.engines.transformers.engine import (
    TransformersEngine as TransformersEngine,
    load_engine as load_engine,
)
