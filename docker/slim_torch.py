"""Remove from a CPU image what only a GPU needs, and check that torch still works.

PyPI's torch for Linux is built for CUDA and cannot be imported without the libraries that it is linked with.
Those that only GPU code calls are replaced by small libraries of the same name whose functions return an
error (1). Triton, cuDNN's engines, compilers and headers are removed, because only GPU code loads them, on
demand. Machine code for GPUs in libtorch_cuda.so is overwritten with zeros. The remaining modules are
compiled to bytecode: pods cannot write it, and without it every start compiles torch and transformers again.
Needs GNU binutils.
"""

import compileall
import os
import platform
import shutil
import site
import subprocess
import sys
import tempfile
from pathlib import Path

# Relative to site-packages; folders and globs.
UNUSED = (
    "triton",
    "nvidia/cudnn/lib/libcudnn_*",
    "nvidia/cudnn/include",
    "nvidia/*/include",
    "nvidia/cu13/lib/libcusolver*",
    "nvidia/cu13/lib/libnvJitLink*",
    "nvidia/cu13/lib/libnvblas*",
    "nvidia/cu13/lib/libnvrtc.alt*",
    "nvidia/cu13/lib/libnvrtc-builtins*",
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
# Libraries that torch is linked with and that only GPU code calls.
REPLACED = (
    "nvidia/cu13/lib/libcublas.so.*",
    "nvidia/cu13/lib/libcublasLt.so.*",
    "nvidia/cu13/lib/libcufft.so.*",
    "nvidia/cu13/lib/libcurand.so.*",
    "nvidia/cu13/lib/libcusparse.so.*",
    "nvidia/cu13/lib/libnvrtc.so.*",
    "nvidia/cudnn/lib/libcudnn.so.*",
    "nvidia/cusparselt/lib/libcusparseLt.so.*",
    "nvidia/nccl/lib/libnccl.so.*",
    "nvidia/nvshmem/lib/libnvshmem_host.so.*",
)
#: a function that returns 1, by processor
RETURNS_1 = {"x86_64": "mov $1, %eax\nret\n", "aarch64": "mov w0, #1\nret\n"}
CHECK = """
import torch, torchvision, transformers
assert not torch.cuda.is_available()
layer = torch.nn.MultiheadAttention(64, 4)
x = torch.randn(8, 1, 64)
assert layer(x, x, x)[0].shape == x.shape
assert torch.linalg.qr(torch.randn(8, 8))[0].shape == (8, 8)
"""


def main() -> None:
    """Replace and remove the files, and run a model's operations once."""
    packages = Path(sys.argv[1] if len(sys.argv) > 1 else site.getsitepackages()[0])
    before = size(packages)
    called = {
        symbol for lib in (packages / "torch/lib").glob("*.so*") for symbol in _symbols(lib, "undefined")
    }
    for pattern in REPLACED:
        for path in packages.glob(pattern):
            replace(path, called)
    blank(packages / "torch/lib/libtorch_cuda.so", ".nv_fatbin")
    for pattern in UNUSED:
        for path in packages.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    subprocess.run([sys.executable, "-c", CHECK], check=True, env={**os.environ, "PYTHONPATH": str(packages)})
    compile_bytecode(packages)
    print(f"removed {(before - size(packages)) / 1e6:.0f} MB that only a GPU reads")


def compile_bytecode(packages: Path) -> None:
    """Compile every module; leave those that cannot be compiled (a template, another Python's) as they
    are.
    """
    compileall.compile_dir(packages, quiet=2, workers=0)


def replace(library: Path, called: set[str]) -> None:
    """Replace a library by a small one: same name, same versions, functions that return 1.

    Args:
        library: The shared library.
        called: Names of the symbols that torch takes from other libraries.
    """
    versions: dict[str, list[str]] = {}
    for symbol, version in _symbols(library, "defined").items():
        if symbol in called:
            versions.setdefault(version, []).append(symbol)
    names = sorted(name for each in versions.values() for name in each)
    code = RETURNS_1[platform.machine()]
    lines = [f".globl {name}\n.type {name}, @function\n{name}:\n{code}" for name in names]
    with tempfile.TemporaryDirectory() as folder:
        source, linked, script = (Path(folder) / name for name in ("stub.s", "stub.so", "versions"))
        source.write_text(".text\n" + "".join(lines) + '.section .note.GNU-stack,"",@progbits\n')
        subprocess.run(["as", "-o", f"{folder}/stub.o", str(source)], check=True)
        named = [version for version in sorted(versions) if version]
        script.write_text("".join(f"{version} {{ global: *; }};\n" for version in named[:1]))
        options = ["--version-script", str(script)] if script.stat().st_size else []
        command = ["ld", "-shared", "--hash-style=gnu", "-soname", library.name, *options]
        subprocess.run([*command, "-o", str(linked), f"{folder}/stub.o"], check=True)
        library.unlink()  # it may be a link to a package cache
        shutil.copy(linked, library)


def blank(library: Path, section: str) -> None:
    """Write zeros over a section: the file stays as large, but compresses to almost nothing for a
    download.
    """
    command = ["readelf", "--sections", "--wide", str(library)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = [line.partition("]")[2].split() for line in said.splitlines()]
    found = next((row for row in rows if row and row[0] == section), None)
    if found is None:
        raise SystemExit(f"{library.name} has no section {section}")
    offset, length = int(found[3], 16), int(found[4], 16)
    whole = library.read_bytes()
    library.unlink()  # it may be a link to a package cache
    library.write_bytes(whole[:offset] + bytes(length) + whole[offset + length :])
    library.chmod(0o755)


def _symbols(library: Path, which: str) -> dict[str, str]:
    """Return a library's dynamic symbols with their versions."""
    command = ["nm", "--dynamic", f"--{which}-only", str(library)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    words = [line.split()[-1] for line in said.splitlines() if line]
    return {name: version.lstrip("@") for name, _, version in (word.partition("@") for word in words)}


def size(folder: Path) -> int:
    """Return the size of a folder's files in bytes."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


if __name__ == "__main__":
    main()
