"""Fakes of what NVIDIA's driver brings: libraries whose functions fail, so that those linked with them load.

None of them computes. `libnvidia-ml` tells of one GPU, since vLLM asks it whether there is one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

#: CUDA_ERROR_NO_DEVICE
_NO_DEVICE = 100
_NVML = """
#include <string.h>
typedef void *Device;
typedef struct { unsigned long long total, free, used; } Memory;
int nvmlInit(void) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "fake"; }
int nvmlDeviceGetCount(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) { *device = (Device)1; return 2 * !!index; }
int nvmlDeviceGetName(Device device, char *name, unsigned size) { strncpy(name, "fake", size); return 0; }
int nvmlDeviceGetUUID(Device device, char *name, unsigned size) { strncpy(name, "GPU-fake", size); return 0; }
int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
  *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
  memory->total = memory->free = 80ull << 30; memory->used = 0; return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned size) { strncpy(version, "580.0", size); return 0; }
"""

#: says that it is NVENC 13.0, by which PyNvVideoCodec chooses its bindings
_ENCODE = "int NvEncodeAPIGetMaxSupportedVersion(unsigned *version) { *version = 13 << 4; return 0; }"


def make(packages: Sequence[Path], target: Path) -> int:
    """Compile the fakes into a folder; how many functions of libcuda the packages of images call.

    Args:
        packages: The images' site-packages.
        target: The folder, for `LD_LIBRARY_PATH`.
    """
    names = sorted({name for folder in packages for name in _called(folder)})
    body = "".join(f"int {name}(void) {{ return {_NO_DEVICE}; }}\n" for name in names)
    _compile(target / "libcuda.so.1", body)
    _compile(target / "libnvidia-ml.so.1", _NVML)
    _compile(target / "libnvidia-encode.so.1", _ENCODE)
    return len(names)


def _called(packages: Path) -> set[str]:
    """The functions of libcuda that libraries linked with it take from it."""
    found: set[str] = set()
    for path in packages.rglob("*.so*"):
        if not path.is_file() or path.is_symlink():
            continue
        if "[libcuda.so.1]" in _said("readelf", "--dynamic", "--wide", str(path)):
            lines = _said("nm", "--dynamic", "--undefined-only", str(path)).splitlines()
            found |= {line.split()[-1].partition("@")[0] for line in lines}
    for source in packages.glob("triton/backends/nvidia/driver.c"):  # compiled when a service first needs it
        names = set(re.findall(r"\bcu[A-Z]\w+", source.read_text()))
        found |= names | {f"{name}_v2" for name in names}
    return {name for name in found if re.match(r"cu[A-Z]", name)}


def _compile(library: Path, source: str) -> None:
    command = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)


def _said(*command: str) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout
