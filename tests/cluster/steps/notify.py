"""Notifications as the chart installs them: a Notification resource, a webhook, a killed pod."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.steps.gateway import forwarded
from tests.cluster.steps.policies import enforced
from tests.cluster.steps.watches import status, until
from tests.cluster.world import RELEASE, World, image_name

_KEY = "whsec_" + base64.b64encode(b"a key of the cluster tests").decode()
_OPTIONS = (
    *("--set", "gateway.enabled=true", "--set", "gateway.publicUrl=http://cameras.example"),
    *("--set", "notify.enabled=true", "--set", "notify.secret=targets"),
    *("--set", "notify.links.secret=links", "--set", "notify.ports={8080}"),
    *("--set", "notify.settings.notify_hosts=hooks", "--set", "notify.settings.notify_networks=10.0.0.0/8"),
)
#: verifies each signature and prints what it took
_SERVE = """
import http.server, os, sys
from standardwebhooks import Webhook
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        Webhook(os.environ["KEY"]).verify(body, dict(self.headers))
        print(body.decode(), flush=True)
        self.send_response(204)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""


def run(world: World) -> None:
    """An incident reaches a webhook under enforcement, with a link to its picture; the pod is killed."""
    with world.namespace():
        world.kubectl("apply", "-f", "-", stdin=_target())
        world.install(*_OPTIONS)
        spec: dict[str, object] = {
            "webhook": {"url": "http://hooks:8080/lookout", "secrets": ["hook"]},
            "events": ["opened", "closed"],
        }
        world.check(
            world.apply("Notification", "both", {**spec, "apprise": {"urlFile": "a"}}),
            "give one of webhook, apprise and mqtt",
        )
        world.check(world.apply("Notification", "guards", spec), "created")
        world.kubectl("wait", "--for=condition=Accepted", "notification/guards", "--timeout=60s")
        client = world.client()
        world.ask(client)
        film = world.cast[0]
        with enforced(world):
            client.publish(f"first-{film.name}", film.segments)
            first = until("an incident is told", lambda: _told(world, "first-"), bool)
        world.tell(f"{len(first)} events reached the webhook: {first[0]['data']['text']}")
        _picture(world, first[0]["data"]["picture_url"])
        pod = ("pod", "-l", "app.kubernetes.io/component=notify")
        world.kubectl("delete", *pod, "--grace-period=0", "--force")
        client.publish(f"second-{film.name}", film.segments)
        second = until("its successor tells", lambda: _told(world, "second-"), bool)
        world.tell(f"the pod was killed; its successor told {len(second)} events")
        ids = [event["id"] for event in _told(world, "")]
        world.score.doubled += len(ids) - len(set(ids))
        world.tell(f"kubectl get notifications:\n{world.kubectl('get', 'notifications')}")
        world.check(json.dumps(status(world, "notification/guards")), "Accepted")
        world.check(world.kubectl("delete", "notification/guards", "--timeout=60s"), "deleted")
        world.uninstall()


def _told(world: World, prefix: str) -> list[dict[str, Any]]:
    """What reached the webhook of cameras whose ids begin like this, in order."""
    lines = world.kubectl("logs", "hooks", "--tail=-1", check=False).splitlines()
    events: list[dict[str, Any]] = [json.loads(line) for line in lines if line.startswith("{")]
    return [event for event in events if str(event["subject"]).startswith(prefix)]


def _picture(world: World, link: str) -> None:
    """The link of a message shows the picture without a sign-in, once the gateway has read the incident."""
    url = urlsplit(link)
    with forwarded(world, f"deployment/{RELEASE}-gateway", 8080) as address:
        command = ("curl", "-sS", "--max-time", "60", "-o", "/dev/null", "-w", "%{http_code} %{content_type}")
        until(
            "the link in a message shows the picture",
            lambda: world.cluster.outside(*command, f"{address}{url.path}?{url.query}"),
            lambda answer: answer == "200 image/jpeg",
        )
    world.tell("the link in the message shows the picture")


def _target() -> str:
    script = base64.b64encode(_SERVE.encode()).decode()
    return f"""apiVersion: v1
kind: Secret
metadata: {{name: targets}}
stringData: {{hook: {_KEY}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: links}}
stringData: {{key: "a key of links, of the cluster tests"}}
---
apiVersion: v1
kind: Service
metadata: {{name: hooks}}
spec: {{selector: {{app: hooks}}, ports: [{{port: 8080}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: hooks, labels: {{app: hooks}}}}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {{runAsNonRoot: true, runAsUser: 10001, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
    - name: server
      image: {image_name("notify")}
      imagePullPolicy: Never
      command: [python, -c, "import base64; exec(base64.b64decode('{script}'))"]
      env: [{{name: KEY, valueFrom: {{secretKeyRef: {{name: targets, key: hook}}}}}}]
      readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}
      securityContext: {{allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}}}
"""
