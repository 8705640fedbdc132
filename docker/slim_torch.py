"""Remove from an image for CPUs what only a GPU would read, and prove that torch still works.

PyPI's torch for Linux is built for CUDA and cannot be imported without the libraries it is linked with.
The rest is loaded on demand by GPU code alone: Triton, cuDNN's engines, compilers, headers.
"""

import shutil
import site
import subprocess
import sys
from pathlib import Path

# Relative to site-packages; folders and globs.
UNUSED = (
    "triton",
    "nvidia/cudnn/lib/libcudnn_*",
    "nvidia/cudnn/include",
    "nvidia/*/include",
    "nvidia/cu13/lib/libcusolverMg*",
    "nvidia/cu13/lib/libnvrtc.alt*",
    "nvidia/cu13/lib/libnvperf*",
    "nvidia/cu13/lib/*.a",
    "nvidia/cu13/bin",
    "nvidia/cu13/nvvm",
    "nvidia/nvshmem/lib/*.bc",
    "nvidia/nvshmem/lib/*.a",
    "nvidia/nvshmem/lib/nvshmem_*",
    "torch/include",
    "torch/lib/*.a",
    "torch/test",
    "torch/lib/libtorch_cuda_linalg.so",
    "torchcodec",
)
CHECK = """
import torch, torchvision, transformers
layer = torch.nn.MultiheadAttention(64, 4)
x = torch.randn(8, 1, 64)
assert layer(x, x, x)[0].shape == x.shape
assert torch.linalg.qr(torch.randn(8, 8))[0].shape == (8, 8)
"""


def main() -> None:
    """Remove the files and run a model's operations once."""
    packages = Path(site.getsitepackages()[0])
    before = size(packages)
    for pattern in UNUSED:
        for path in packages.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    subprocess.run([sys.executable, "-c", CHECK], check=True)
    print(f"removed {(before - size(packages)) / 1e6:.0f} MB that only a GPU reads")


def size(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


if __name__ == "__main__":
    main()
