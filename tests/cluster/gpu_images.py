"""``python -m tests.cluster.gpu_images``: build the GPU images without a GPU, and try what a CPU allows.

In each image what its service imports where CUDA is there is imported, with fakes of the driver's libraries
(`tests.cluster.fake_driver`), and Triton's module of C is compiled. Then the three services run on the CPU,
with a Kafka and a Redis of their own, until a film has a verdict. Needs 30 GB of disk, 10 minutes and root;
the images are removed afterwards. The last line is JSON, which `bench.record` keeps.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lookout.local.fleet import Fleet, service_module
from lookout.wire import Stage
from tests.cluster import fake_driver, workshop
from tests.cluster.cluster import Cluster
from tests.cluster.in_image import command
from tests.cluster.outside import ExternalClient, films
from tests.cluster.tools import CACHE, ToolError, say

STAGES = {Stage.DECODE: "decode-gpu", Stage.PRUNE_ENCODE: "prune-encode-gpu", Stage.PREFILL: "prefill-gpu"}
#: of the images; with LOOKOUT_IMAGE_TAG those that are there are tried, and stay
TAG = os.environ.get("LOOKOUT_IMAGE_TAG") or "gpu-test"
_PACKAGES = "opt/lookout/lib/python3.11/site-packages"
_PATIENCE_S = 300.0
_FAKE = {
    "LD_LIBRARY_PATH": "/fake",
    "TRITON_LIBCUDA_PATH": "/fake",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}


def main() -> None:
    """Build, try, and say what was found."""
    say(f"{len(STAGES)} images, 30 GB below {CACHE}")
    given = "LOOKOUT_IMAGE_TAG" in os.environ
    facts: dict[str, Any] = {}
    try:
        if not given:
            workshop.build_base()
            build()
        with containers() as names, tempfile.TemporaryDirectory() as folder:
            fakes = Path(folder)
            fakes.chmod(0o755)
            functions = fake_driver.make([mounted(name) / _PACKAGES for name in names.values()], fakes)
            for stage, image in STAGES.items():
                facts[image] = {**described(names[stage]), **imported(names[stage], stage, fakes)}
                say(f"{image}: {json.dumps(facts[image])}")
            facts["prefill-gpu"]["vllm without a driver"] = refused(names[Stage.PREFILL])
            facts["film"] = play(names)
            facts["functions of the fake libcuda"] = functions
    finally:
        for image in () if given else STAGES.values():
            if workshop.have_image(_name(image)):
                workshop.buildah("rmi", "--force", _name(image))
    print(json.dumps(facts), flush=True)


def build() -> None:
    """Build the images.

    Raises:
        ToolError: One was not built.
    """
    base = workshop.build_base_with_headers()
    environment = {**workshop.environment(), "LOOKOUT_IMAGE_TAG": TAG, "LOOKOUT_PYTHON_IMAGE": base}
    command_line = [sys.executable, str(workshop.ROOT / "docker/build.py"), *STAGES.values()]
    if subprocess.run(command_line, env=environment, check=False, stdout=sys.stderr).returncode:
        raise ToolError("the images were not built")


def described(container: str) -> dict[str, Any]:
    """Megabytes of an image's files, and the commit that it was built from."""
    said = subprocess.run(["du", "-xsm", str(mounted(container))], check=True, capture_output=True, text=True)
    label = '{{index .OCIv1.Config.Labels "org.opencontainers.image.revision"}}'
    revision = workshop.buildah("inspect", "--format", label, container).strip()
    return {"megabytes": int(said.stdout.split()[0]), "commit": revision}


def _name(image: str) -> str:
    return f"{os.environ.get('LOOKOUT_IMAGE_PREFIX') or 'localhost/'}lookout-{image}:{TAG}"


@contextmanager
def containers() -> Iterator[dict[str, str]]:
    """A container of each image, by stage; removed afterwards, with what still runs in them."""
    names = {
        str(stage): workshop.buildah("from", "--pull-never", _name(image)).strip()
        for stage, image in STAGES.items()
    }
    roots = [str(mounted(name)) for name in names.values()]
    try:
        yield names
    finally:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if str((process / "root").readlink()) in roots:
                    os.kill(int(process.name), 9)
            except OSError:
                continue
        for name in names.values():
            workshop.buildah("rm", name)


def mounted(container: str) -> Path:
    """Where a container's files are on this machine."""
    return Path(workshop.buildah("mount", container).strip())


def imported(container: str, stage: str, fakes: Path) -> dict[str, Any]:
    """Import what a service imports with CUDA, with fakes of the driver.

    Raises:
        ToolError: It cannot be imported; the end of what Python says is in the message.
    """
    here = str(Path(__file__).parent)
    volumes = ("--volume", f"{fakes}:/fake:ro", "--volume", f"{here}:/probe:ro")
    settings = {**_FAKE, "PYTHONDONTWRITEBYTECODE": "1"}
    said = _inside(container, ["python", "/probe/gpu_probe.py", stage], settings, *volumes)
    if said.returncode:
        raise ToolError(f"{container}: {said.stderr[-1500:]}")
    return dict(json.loads(said.stdout.splitlines()[-1]))


def refused(container: str) -> str:
    """Return the message with which prefill refuses to run vLLM without a driver.

    Raises:
        ToolError: It did not end by itself.
    """
    model = f"/{_PACKAGES}/lookout/models/tiny"
    settings = {"LOOKOUT_BOOTSTRAP": "127.0.0.1:1", "LOOKOUT_MODEL_DIR": model, "LOOKOUT_MODE": "local"}
    said = _inside(container, ["python", "-m", service_module(Stage.PREFILL)], settings)
    if not said.returncode:
        raise ToolError("prefill did not refuse vLLM without a driver")
    return f"exit code {said.returncode}: {(said.stderr or said.stdout).strip().splitlines()[-1][-300:]}"


def play(names: Mapping[str, str]) -> dict[str, Any]:
    """Run the services in their images on this machine's CPU, and count the verdicts of a film.

    Raises:
        ToolError: None came.
    """
    film = films(CACHE / "films")[0]
    modules = {
        stage: ("tests.cluster.in_image", container, service_module(stage))
        for stage, container in names.items()
    }
    fleet = Fleet(
        stages=tuple(STAGES),
        modules=modules,
        settings={"grpc_token": "of a test"},
        stage_settings={Stage.PREFILL: {"engine": "transformers", "device": "cpu"}},
        open_servers=True,
        python_path=workshop.ROOT,
    )
    fleet.on_progress(say)
    with fleet:
        client = ExternalClient(_Here(), fleet.bootstrap)
        client.ask("person", "Is there a person?", "*")
        client.publish("film", film.segments)
        begun = time.monotonic()
        while not (found := client.read("film")).verdicts:
            if time.monotonic() - begun > _PATIENCE_S:
                raise ToolError(f"no verdict within {_PATIENCE_S:.0f} s; logs in {fleet.logs}")
            time.sleep(1.0)
            for news in fleet.supervise():
                say(news)
        return {
            "first verdict s": round(time.monotonic() - begun, 1),
            "outcome": found.verdicts[0]["outcome"],
        }


class _Here(Cluster):
    """This machine, without a cluster."""

    prefix = ()


def _inside(
    container: str, words: list[str], settings: Mapping[str, str], *options: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(container, words, settings, *options),
        env=workshop.environment(),
        check=False,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )


if __name__ == "__main__":
    try:
        main()
    except ToolError as error:
        sys.exit(f"tests.cluster.gpu_images: {error}")
