"""Window plans executed by the stock transformers modules: the oracle, and the engine of small installs."""

from lookout.engines.transformers.engine import TransformersEngine, load_engine

__all__ = ["TransformersEngine", "load_engine"]
