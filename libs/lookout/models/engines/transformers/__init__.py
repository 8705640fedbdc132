"""Runs window plans on the stock transformers modules: the reference, and the engine of small installs."""

from lookout.models.engines.transformers.engine import (
    TransformersEngine as TransformersEngine,
    load_engine as load_engine,
)
