"""The model from a volume, an OCI image and an https address with its SHA-256; its vision half alone."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import tempfile
from pathlib import Path

from lookout.models.vision_half import write_vision_half
from tests.cluster import storage, workshop
from tests.cluster.cluster import STATE
from tests.cluster.pki import Authority, Subject
from tests.cluster.steps.watches import until
from tests.cluster.world import CHART, NAMESPACE, RELEASE, World, image_name

MODEL = workshop.ROOT / "libs/lookout/models/tiny"
IMAGE = "localhost/lookout-model:test"
_SERVER = "models"
_WHOLE, _HALF = "model.tar.gz", "half.tar.gz"
_SERVE = (
    "import http.server,ssl\n"
    "context=ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)\n"
    "context.load_cert_chain('/certificate/tls.crt','/certificate/tls.key')\n"
    "import functools\n"
    "handler=functools.partial(http.server.SimpleHTTPRequestHandler,directory='/archive')\n"
    "server=http.server.ThreadingHTTPServer(('',8443),handler)\n"
    "server.socket=context.wrap_socket(server.socket,server_side=True)\n"
    "server.serve_forever()\n"
)


def run(world: World) -> None:
    """The same model from each source in turn gives the same outcomes; a wrong digest is refused."""
    world.cluster.load_changed([build_image()])
    copy_model(storage.folder("model") / "tiny")
    storage.provide(world.cluster, ["archive", "model"])
    try:
        with world.namespace():
            world.kubectl("apply", "-f", "-", stdin=storage.claim("model"))
            whole, half = serve(world)
            world.install("--set", "model.source=volume", *_set("volume", claim="model", path="tiny"))
            client = world.client()
            world.ask(client)
            _play(world, "volume")
            image = _set("image", reference=IMAGE, path="tiny")
            # What another source needs may not stand beside the one that counts.
            world.upgrade("--set", "model.source=image", *image, *_set("volume", claim=""))
            _play(world, "image")
            address = f"https://{_SERVER}.{NAMESPACE}.svc:8443"
            source = (
                *("--set", "model.source=url", *_set("image", reference="")),
                *_set("url", address=f"{address}/{_WHOLE}", caSecret="models-ca", size="1Gi"),
            )
            _refused(world, *source, *_set("url", sha256="0" * 64))
            world.upgrade(*source, *_set("url", sha256=_digest(whole)))
            _play(world, "url")
            world.upgrade(*_set("url.vision", address=f"{address}/{_HALF}", sha256=_digest(half)))
            _play(world, "half")
            world.uninstall()
    finally:
        storage.remove(world.cluster, ["archive", "model"])


def _digest(archive: bytes) -> str:
    return hashlib.sha256(archive).hexdigest()


def _set(source: str, **values: str) -> list[str]:
    return [
        word for name, value in values.items() for word in ("--set-string", f"model.{source}.{name}={value}")
    ]


def _play(world: World, source: str) -> None:
    folder = world.kubectl(
        *("get", f"statefulset/{RELEASE}-prefill", "-o"),
        "jsonpath={.spec.template.spec.containers[0].env[?(@.name=='LOOKOUT_MODEL_DIR')].value}",
    )
    world.ensure_reference(world.client())
    world.one_film(world.client(), f"{source}-")
    world.tell(f"the model came from the {source}: {folder.strip()}")


def _refused(world: World, *options: str) -> None:
    """An archive with another digest is never used; the pod says so and does not start."""
    values = ("--reuse-values", *options, "--wait", "--timeout", "45s")
    said = world.cluster.helm("upgrade", RELEASE, str(CHART), "--namespace", NAMESPACE, *values, check=False)
    world.check(said, "ailed")
    log = until(
        "an archive with another digest is refused",
        lambda: world.kubectl("logs", f"{RELEASE}-prefill-0", "-c", "model", "--tail=5", check=False),
        lambda text: "its SHA-256 is" in text,
    )
    world.check(log, "not used")
    world.tell(f"a wrong digest is refused: {log.strip().splitlines()[-1][:250]}")


def copy_model(target: Path) -> None:
    """Copy the checkpoint, readable for everybody."""
    target.mkdir(parents=True, exist_ok=True)
    for path in MODEL.iterdir():
        if path.is_file():
            (target / path.name).write_bytes(path.read_bytes())


def build_image() -> str:
    """Build an image that holds the checkpoint and nothing else."""
    folder = workshop.HOME / "model"
    copy_model(folder / "tiny")
    workshop.build(folder, IMAGE, "FROM scratch\nCOPY tiny /tiny\n")
    return IMAGE


def serve(world: World) -> tuple[bytes, bytes]:
    """Start an https server with the checkpoint's archive and that of its vision half; returns both."""
    authority = Authority(STATE / "models")
    authority.issue(Subject("server", _SERVER, dns=(f"{_SERVER}.{NAMESPACE}.svc",)))
    files = {name: (STATE / "models" / name).read_bytes() for name in ("ca.crt", "server.crt", "server.key")}
    with tempfile.TemporaryDirectory() as folder:
        write_vision_half(MODEL, Path(folder))
        archives = {_WHOLE: _archive(MODEL), _HALF: _archive(Path(folder))}
    for name, archive in archives.items():
        (storage.folder("archive") / name).write_bytes(archive)
    text = {name: base64.b64encode(data).decode() for name, data in files.items()}
    world.kubectl("apply", "-f", "-", stdin=storage.claim("archive"))
    world.kubectl("apply", "-f", "-", stdin=_server(text))
    world.kubectl("wait", "--for=condition=Ready", f"pod/{_SERVER}", "--timeout=60s")
    return archives[_WHOLE], archives[_HALF]


def _archive(folder: Path) -> bytes:
    """An archive of a folder's files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for path in sorted(folder.iterdir()):
            if path.is_file():
                tar.add(path, path.name)
    return buffer.getvalue()


def _server(files: dict[str, str]) -> str:
    script = base64.b64encode(_SERVE.encode()).decode()
    return f"""apiVersion: v1
kind: Secret
metadata: {{name: models-ca}}
data: {{ca.crt: {files["ca.crt"]}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: models-server}}
data: {{tls.crt: {files["server.crt"]}, tls.key: {files["server.key"]}}}
---
apiVersion: v1
kind: Service
metadata: {{name: {_SERVER}}}
spec: {{selector: {{app: {_SERVER}}}, ports: [{{port: 8443}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {_SERVER}, labels: {{app: {_SERVER}}}}}
spec:
  terminationGracePeriodSeconds: 1
  securityContext:
    {{runAsNonRoot: true, runAsUser: 10001, fsGroup: 10001, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
    - name: server
      image: {image_name("controller")}
      imagePullPolicy: Never
      command: [python, -c, "import base64; exec(base64.b64decode('{script}'))"]
      readinessProbe: {{tcpSocket: {{port: 8443}}, periodSeconds: 1}}
      securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
      volumeMounts:
        - {{name: certificate, mountPath: /certificate}}
        - {{name: archive, mountPath: /archive}}
  volumes:
    - {{name: certificate, secret: {{secretName: models-server}}}}
    - {{name: archive, persistentVolumeClaim: {{claimName: archive}}}}
"""
