"""The vLLM engine (production): window plans inside unpatched vLLM, CPU and GPU wheels alike."""

from lookout.engines.vllm.engine import VllmEngine, load_engine

__all__ = ["VllmEngine", "load_engine"]
