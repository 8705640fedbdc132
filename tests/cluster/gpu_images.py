"""``python -m tests.cluster.gpu_images [IMAGE ...]``: build GPU images without a GPU, try what a CPU allows.

In each image what its service imports where CUDA is there is imported, with fakes of the driver's libraries
(`tests.cluster.fake_driver`), and Triton's module of C is compiled. Then the services run on the CPU, with a
Kafka, a Redis and the rest of a fleet of this machine, until a film has a verdict. Needs 10 minutes, root and
the disk that it names first: decode-gpu alone needs less, those with vLLM have their layers in common. The
images are removed afterwards. The last line is JSON, which `bench.record` keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lookout.local.fleet import Fleet
from lookout.wire import Stage
from tests.cluster import fake_driver, workshop
from tests.cluster.in_image import (
    PACKAGES,
    PATIENCE_S,
    Here,
    containers,
    described,
    model_folder,
    mounted,
    run,
    service,
)
from tests.cluster.outside import ExternalClient, films
from tests.cluster.tools import CACHE, ToolError, say

STAGES = {Stage.DECODE: "decode-gpu", Stage.PRUNE_ENCODE: "prune-encode-gpu", Stage.PREFILL: "prefill-gpu"}
#: of the images; with LOOKOUT_IMAGE_TAG those that are there are tried, and stay
TAG = os.environ.get("LOOKOUT_IMAGE_TAG") or "gpu-test"
#: GB of disk while images are built: those with vLLM have layers in common
MODEL_GB, NEEDS_GB = 25, {"decode-gpu": 14}
_FAKE = {
    "LD_LIBRARY_PATH": "/fake",
    "TRITON_LIBCUDA_PATH": "/fake",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def main() -> None:
    """Build, try, and say what was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.gpu_images", description=__doc__)
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help=f"of {', '.join(STAGES.values())}; else all"
    )
    wanted = parser.parse_args().images or list(STAGES.values())
    if unknown := sorted(set(wanted) - set(STAGES.values())):
        parser.error(f"no image {', '.join(unknown)}; there are {', '.join(STAGES.values())}")
    stages = {stage: image for stage, image in STAGES.items() if image in wanted}
    given = "LOOKOUT_IMAGE_TAG" in os.environ
    facts: dict[str, Any] = {}
    try:
        if not given:
            check_disk(wanted)
            workshop.build_base()
            build(wanted)
        with (
            containers({stage: _name(image) for stage, image in stages.items()}) as names,
            tempfile.TemporaryDirectory() as folder,
        ):
            fakes = Path(folder)
            fakes.chmod(0o755)
            functions = fake_driver.make([mounted(name) / PACKAGES for name in names.values()], fakes)
            for stage, image in stages.items():
                facts[image] = {**described(names[stage]), **imported(names[stage], stage, fakes)}
                say(f"{image}: {json.dumps(facts[image])}")
            facts["film"] = play(names)
            facts["functions of the fake libcuda"] = functions
    finally:
        for image in () if given else wanted:
            if workshop.have_image(_name(image)):
                workshop.buildah("rmi", "--force", _name(image))
    print(json.dumps(facts), flush=True)


def check_disk(images: Sequence[str]) -> None:
    """Say how much disk the images take.

    Raises:
        ToolError: Less is free.
    """
    needed = max(NEEDS_GB.get(image, MODEL_GB) for image in images)
    say(f"{len(images)} images, {needed} GB below {CACHE}")
    CACHE.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(CACHE).free / 1e9) < needed:
        raise ToolError(f"{CACHE}: {free:.0f} GB are free, {needed} are needed; set LOOKOUT_CLUSTER_CACHE")


def build(images: Sequence[str]) -> None:
    """Build the images.

    Raises:
        ToolError: One was not built.
    """
    base = workshop.build_base_with_headers()
    environment = {**workshop.environment(), "LOOKOUT_IMAGE_TAG": TAG, "LOOKOUT_PYTHON_IMAGE": base}
    command_line = [sys.executable, str(workshop.ROOT / "docker/build.py"), *images]
    if subprocess.run(command_line, env=environment, check=False, stdout=sys.stderr).returncode:
        raise ToolError("the images were not built")


def _name(image: str) -> str:
    return f"{os.environ.get('LOOKOUT_IMAGE_PREFIX') or 'localhost/'}lookout-{image}:{TAG}"


def imported(container: str, stage: str, fakes: Path) -> dict[str, Any]:
    """Import what a service imports with CUDA, with fakes of the driver.

    Raises:
        ToolError: It cannot be imported; the end of what Python says is in the message.
    """
    here = str(Path(__file__).parent)
    volumes = ("--volume", f"{fakes}:/fake:ro", "--volume", f"{here}:/probe:ro")
    settings = {**_FAKE, "PYTHONDONTWRITEBYTECODE": "1"}
    said = run(container, ["python", "/probe/gpu_probe.py", stage], settings, *volumes)
    if said.returncode:
        raise ToolError(f"{container}: {said.stderr[-1500:]}")
    return dict(json.loads(said.stdout.splitlines()[-1]))


def play(names: Mapping[str, str]) -> dict[str, Any]:
    """Run the services in their images on this machine's CPU, and count the verdicts of a film.

    Raises:
        ToolError: None came.
    """
    film = films(CACHE / "films")[0]
    modules = {stage: service(container, stage) for stage, container in names.items()}
    fleet = Fleet(
        stages=tuple(STAGES),
        modules=modules,
        settings={"grpc_token": "of a test"},
        stage_settings={
            Stage.PRUNE_ENCODE: {"model_dir": model_folder(Stage.PRUNE_ENCODE, names)},
            Stage.PREFILL: {
                "model_dir": model_folder(Stage.PREFILL, names),
                "engine": "transformers",
                "device": "cpu",
            },
        },
        open_servers=True,
        python_path=workshop.ROOT,
    )
    fleet.on_progress(say)
    with fleet:
        client = ExternalClient(Here(), fleet.bootstrap)
        client.ask("person", "Is there a person?", "*")
        client.publish("film", film.segments)
        begun = time.monotonic()
        while not (found := client.read("film")).verdicts:
            if time.monotonic() - begun > PATIENCE_S:
                raise ToolError(f"no verdict within {PATIENCE_S:.0f} s; logs in {fleet.logs}")
            time.sleep(1.0)
            for news in fleet.supervise():
                say(news)
        return {
            "first verdict s": round(time.monotonic() - begun, 1),
            "outcome": found.verdicts[0]["outcome"],
        }


if __name__ == "__main__":
    try:
        main()
    except ToolError as error:
        sys.exit(f"tests.cluster.gpu_images: {error}")
