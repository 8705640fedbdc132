"""Runs inside a GPU image: imports what its service imports where CUDA is, and compiles what Triton does.

The driver's libraries are replaced by fakes (`tests.cluster.fake_driver`), so nothing is computed. Ends with
one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import sysconfig
from pathlib import Path

PACKAGES = Path(sysconfig.get_path("purelib"))


def every_module(package: str) -> None:
    """Import a package and all that is below it."""
    for each in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(each.name)


def prefill() -> dict[str, object]:
    """The engine's modules, vLLM's worker, attention and compiled libraries for CUDA, Triton's driver."""
    import torch
    from vllm.platforms import current_platform
    from vllm.platforms.cuda import _get_backend_priorities
    from vllm.platforms.interface import DeviceCapability

    assert current_platform.is_cuda(), current_platform
    every_module("lookout.models.engines.vllm")
    for name in ("lookout.services.prefill.__main__", "vllm.v1.worker.gpu_worker", "vllm.vllm_flash_attn"):
        importlib.import_module(name)
    current_platform.import_kernels()
    for library in sorted((PACKAGES / "vllm").rglob("*.so")):
        torch.ops.load_library(str(library))
    backends = {
        backend.name: backend.get_class().__module__
        for version in ((8, 0), (8, 9), (9, 0), (10, 0))
        for backend in _get_backend_priorities(False, DeviceCapability(*version))
    }
    return {"backends": sorted(backends), **compiled()}


def prune_encode() -> dict[str, object]:
    """The families and their towers."""
    every_module("lookout.models.families")
    every_module("lookout.models.vision")
    importlib.import_module("lookout.services.prune_encode.__main__")
    return compiled()


def decode() -> dict[str, object]:
    """The decoder's bindings, which load the driver's libraries of video."""
    every_module("lookout.video.segments")
    importlib.import_module("PyNvVideoCodec")
    importlib.import_module("lookout.services.decode.__main__")
    return {}


def compiled() -> dict[str, object]:
    """Compile the module of C that Triton makes before its first kernel, and load it."""
    from triton.backends.nvidia.driver import CudaUtils

    return {"compiles": callable(CudaUtils().load_binary)}


def main() -> None:
    """Run the part that is named."""
    facts = {"prefill": prefill, "prune-encode": prune_encode, "decode": decode}[sys.argv[1]]()
    files = [str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())]
    loaded = [name for name in files if name.startswith(str(PACKAGES))]
    mapped = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    libraries = [name for name in mapped if name.startswith(str(PACKAGES))]
    print(json.dumps({"modules": len(loaded), "libraries": len(libraries), **facts}))


if __name__ == "__main__":
    main()
