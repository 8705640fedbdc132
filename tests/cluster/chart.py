"""Checks of the chart with the real helm: lint, refusals, security fields against a snapshot, dry run.

``python -m tests.cluster.chart --write`` renders the snapshot (`security.json`) again.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.cluster import workshop
from tests.cluster.cluster import Cluster
from tests.cluster.tools import BIN, KUBERNETES, ToolError

CHART = workshop.ROOT / "charts" / "lookout"
CRD_CHART = workshop.ROOT / "charts" / "lookout-crds"
SNAPSHOT = Path(__file__).parent / "security.json"
#: ways to install that render everything the chart has
VARIANTS: dict[str, dict[str, str]] = {
    "tryout": {"tryout.kafka.outside.host": "192.0.2.1"},
    "production": {
        "tryout.enabled": "false",
        "kafka.bootstrap": "kafka:9093",
        "kafka.tls.enabled": "true",
        "kafka.tls.caSecret": "kafka-ca",
        "kafka.tls.clientSecret": "kafka-client",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.secret": "kafka-user",
        "redis.url": "rediss://redis:6379/0",
        "redis.passwordSecret": "redis-user",
        "redis.caSecret": "redis-ca",
        "cameraAgent.enabled": "true",
        "cameraAgent.cameraNetworks[0]": "10.0.0.0/8",
        "cameraAgent.credentialSecrets[0]": "yard",
        "model.source": "url",
        "model.url.address": "https://models.example:8443/model.tar.gz",
        "model.url.sha256": "0" * 64,
        "monitoring.dashboard": "true",
        "prefill.gpus": "1",
        "prefill.image": "prefill-gpu",
        "pruneEncode.gpus": "1",
        "pruneEncode.image": "prune-encode-gpu",
        "decode.gpus": "1",
        "decode.image": "decode-gpu",
        "recall.enabled": "true",
        "recall.callers.app": "console",
        "gateway.enabled": "true",
        "gateway.replicas": "2",
        "gateway.database.secret": "history",
        "gateway.tls.secret": "gateway-tls",
        "gateway.oidc.issuer": "https://login.example:8444/realms/main",
        "gateway.oidc.clientId": "lookout",
        "gateway.oidc.secret": "oidc",
        "gateway.oidc.grants[0].group": "guards",
        "gateway.oidc.grants[0].role": "operator",
        "gateway.keep.url": "s3://evidence/fleet",
        "gateway.keep.limit": "2Gi",
        "gateway.keep.endpoint": "https://objects.example:9000",
        "gateway.keep.secret": "objects",
        "gateway.ingress.enabled": "true",
        "gateway.ingress.host": "lookout.example.org",
        "gateway.callerNamespaces.name": "ingress",
        "notify.enabled": "true",
        "notify.secret": "targets",
        "notify.links.secret": "links",
        "notify.push.secret": "push",
        "notify.settings.notify_hosts": "hooks.example.org",
        "notify.settings.opinion_key": "second",
        "opinion.enabled": "true",
        "opinion.image": "prefill-gpu",
        "opinion.gpus": "1",
        "opinion.model.source": "volume",
        "opinion.model.volume.claim": "second",
        "recordings.enabled": "true",
        "recordings.claims.yard": "cctv",
        "recordings.decodeReplicas": "1",
        "prefill.memory.keep": "2h",
        "prefill.memory.url": "s3://chapters/fleet",
        "prefill.memory.endpoint": "https://objects.example:9000",
        "prefill.memory.secret": "objects",
        "prefill.memory.storage.size": "100Gi",
    },
}
#: what needs extensions of the cluster, and the versions of their APIs
EXTENDED: dict[str, str] = {
    "monitoring.podMonitor": "true",
    "monitoring.rules": "true",
    "monitoring.dashboard": "true",
    "monitoring.prometheusAddress": "http://prometheus.monitoring:9090",
    "networkPolicy.metricsNamespaces.kubernetes\\.io/metadata\\.name": "monitoring",
    "cameraAgent.enabled": "true",
    "cameraAgent.cameraNetworks[0]": "10.0.0.0/8",
    **{
        f"{stage}.autoscaling.enabled": "true"
        for stage in ("decode", "pruneEncode", "prefill", "alerts", "cameraAgent")
    },
}
API_VERSIONS = ("keda.sh/v1alpha1", "cert-manager.io/v1", "monitoring.coreos.com/v1")
_OWN = "tryout.enabled=false kafka.bootstrap=kafka:9092 redis.url=redis://redis"
_OPINION = (
    "opinion.enabled=true notify.enabled=true notify.settings.notify_hosts=a notify.links.secret=links "
    "gateway.enabled=true gateway.publicUrl=https://a"
)
#: values that must be refused (several with a space between), and words of the refusal
REFUSED = {
    "tryout.enabeld=false": "additional properties 'enabeld' not allowed",
    "replicas=3": "additional properties 'replicas' not allowed",
    "decode.replicas=0": "'/decode/replicas': minimum",
    "decode.spool=": "'/decode/spool': minLength",
    "decode.settings.stride=3": "additional properties 'stride' not allowed",
    "settings.fps=fast": "want number",
    "pruneEncode.settings.anchor_samples=": "settings/anchor_samples': got string, want integer",
    "pruneEncode.settings.anchor_samples=null": "settings/anchor_samples': got null, want integer",
    "prefill.settings.preset=null": "'/prefill/settings/preset'",
    "tenants.quotas.acme.cameras=": "'/tenants/quotas/acme/cameras': got string, want integer",
    "settings.kafka_password=x": "additional properties 'kafka_password' not allowed",
    "topics.replication=2": "topics.replication: 2 copies need as many brokers",
    "topics.partitions=0": "'/topics/partitions': minimum",
    "topics.retentionHours.verdict=5": "additional properties 'verdict' not allowed",
    "image.prefix=r.example/team": 'image.prefix: "r.example/team" is not a beginning of an image\'s name',
    "image.prefix=Registry/": 'image.prefix: "Registry/" is not a beginning of an image\'s name',
    "image.pullPolicy=Sometimes": "'/image/pullPolicy': value must be one of",
    "image.digests.decode=latest": 'image.digests.decode: "latest" is not a digest',
    "prefill.gpus=many": "'/prefill/gpus': got string, want integer",
    "prefill.gpus=1": "prefill.gpus: the image prefill is for CPUs; set prefill.image=prefill-gpu",
    "pruneEncode.gpus=1": "set pruneEncode.image=prune-encode-gpu",
    "decode.image=decode-gpu": "decode.image: decode-gpu needs a GPU; set decode.gpus=1",
    "grpc.days=0": "grpc.days: 0 is too little",
    "tryout.kafka.outside.port=80": "'/tryout/kafka/outside/port': minimum",
    "networkPolicy.dependencyPorts={70000}": "'/networkPolicy/dependencyPorts/0': maximum",
    "pod=null": "pod: it is null or missing: leave it out for the chart's default, {}",
    "prefill.autoscaling=null": "prefill.autoscaling: it is null or missing: leave it out for the",
    "image.pullPolicy=null": "image.pullPolicy: it is null or missing",
    "kafka.sasl.secrets=null": "kafka.sasl.secrets: it is null or missing",
    "kafka.bootstrap=nohost": 'kafka.bootstrap: "nohost" is not a list of servers',
    "kafka.sasl.mechanism=GSSAPI": "'/kafka/sasl/mechanism': value must be one of",
    "redis.url=redis://user:password@host:6379": (
        'redis.url: "redis://***@host:6379" is not an address of Redis'
    ),
    "tryout.enabled=false": "kafka.bootstrap: give your Kafka's bootstrap servers",
    "tryout.enabled=false kafka.bootstrap=kafka:9092": "redis.url: give your Redis's address",
    f"{_OWN} kafka.sasl.mechanism=PLAIN": "kafka.sasl.secret: name the secret",
    "prefill.autoscaling.enabled=true": "KEDA is not installed",
    "monitoring.rules=true": "the Prometheus operator is not installed",
    "monitoring.podMonitor=true": "the Prometheus operator is not installed",
    "grpc.source=cert-manager": "cert-manager is not installed",
    "cameraAgent.enabled=true": "cameraAgent.cameraNetworks: give the networks",
    "cameraAgent.cameraNetworks={10.0.0.0}": 'cameraAgent.cameraNetworks[0]: "10.0.0.0" is not a network',
    "cameraAgent.cameraNetworks={10.0.0.0/33}": (
        'cameraAgent.cameraNetworks[0]: "10.0.0.0/33" is not a network'
    ),
    "cameraAgent.cameraNetworks={10.0.0.256/24}": (
        'cameraAgent.cameraNetworks[0]: "10.0.0.256/24" is not a network'
    ),
    "cameraAgent.cameraNetworks={fd00::/129}": 'cameraAgent.cameraNetworks[0]: "fd00::/129" is not a network',
    f"{_OWN} kafka.sasl.secrets.decode=user": "set kafka.sasl.mechanism",
    f"{_OWN} kafka.tls.clientSecrets.decode=user": "set kafka.tls.enabled=true",
    f"{_OWN} kafka.sasl.secrets.pruneEncode=user": "additional properties 'pruneEncode' not allowed",
    f"{_OWN} kafka.sasl.mechanism=OAUTHBEARER kafka.sasl.secret=user": "kafka.sasl.tokenUrl: set it if",
    f"{_OWN} kafka.sasl.tokenUrl=https://idp/token": "kafka.sasl.tokenUrl: set it if",
    f"{_OWN} kafka.sasl.tokenScope=kafka": "set kafka.sasl.tokenUrl",
    "kafka.sasl.tokenUrl=idp": 'kafka.sasl.tokenUrl: "idp" is not an address of a token endpoint',
    f"{_OWN} redis.cluster=true redis.sentinel=directory": "set only one of the two values",
    f"{_OWN} redis.sentinelAuth=true": "redis.sentinelAuth: it would not be used",
    "redis.sentinel=directory": "tryout.enabled=true runs the bundled Kafka and Redis",
    "model.digest=xyz": 'model.digest: "xyz" is not a digest of a checkpoint',
    "prefill.memory.keep=2hours": 'prefill.memory.keep: "2hours" is neither a time nor a size',
    "model.source=cloud": "value must be one of",
    "model.source=volume": "model.volume.claim: name the claim",
    "model.source=image": "model.image.reference: name the image",
    "model.source=url": "model.url.sha256: give the SHA-256",
    "model.url.address=http://models/model.tar": (
        'model.url.address: "http://models/model.tar" is not an https address'
    ),
    "model.url.vision.address=https://models/half.tar": "model.url.vision: the model comes from elsewhere",
    "model.url.vision.sha256=abc": 'model.url.vision.sha256: "abc" is not a SHA-256',
    f"model.source=url model.url.sha256={'0' * 64} model.url.address=https://models/model.tar "
    "model.url.vision.address=https://models/half.tar": "model.url.vision.sha256: give the SHA-256",
    "kafka.bootstrap=kafka:9092": "tryout.enabled=true runs the bundled Kafka and Redis",
    "redis.url=rediss://redis": "set tryout.enabled=false to use yours",
    f"{_OWN} kafka.tls.caSecret=ca": "set kafka.tls.enabled=true",
    f"{_OWN} kafka.sasl.secret=user": "set kafka.sasl.mechanism",
    f"{_OWN} redis.caSecret=ca": "use a redis.url that begins with rediss://",
    f"{_OWN} redis.username=fleet": "give the secret with the user's password in redis.passwordSecret",
    "model.volume.claim=models": "set model.source=volume to use it",
    "model.image.reference=models:1": "set model.source=image to use it",
    "model.url.addressSecret=where": "set model.source=url to use it",
    "cameraAgent.enabled=true controller.enabled=false": "set controller.enabled=true",
    "alerts.autoscaling.minReplicas=4": "alerts.autoscaling.maxReplicas: it is less than minReplicas (4)",
    "alerts.autoscaling.minReplicas=0": "'/alerts/autoscaling/minReplicas': minimum",
    "networkPolicy.apiNetworks={10.0.0.1}": 'networkPolicy.apiNetworks[0]: "10.0.0.1" is not a network',
    "networkPolicy.dnsPorts={0}": "'/networkPolicy/dnsPorts/0': minimum",
    "prefill.resources.limits.memory=4GB": 'prefill.resources.limits.memory: "4GB" is not a quantity',
    "image.tag=my/tag": 'image.tag: "my/tag" is not a tag',
    "tryout.kafka.outside.host=http://node": (
        'tryout.kafka.outside.host: "http://node" is not an address of a node'
    ),
    "kafka.options.group\\.id=mine": "the services set this option",
    "kafka.options.sasl\\.password=secret": "the services set this option",
    "kafka.options.ssl\\.key\\.password=secret": "the services set this option",
    "decode.settings.uri_hosts=a;b": 'decode.settings.uri_hosts: "a;b" is rejected',
    "decode.settings.uri_hosts=https://media.example/x": (
        'decode.settings.uri_hosts: "https://media.example/x" is rejected'
    ),
    "prefill.replicas=13": "prefill.replicas: only topics.partitions (12) of the pods would get work",
    f"fullnameOverride={'a' * 40}": "digits and -, a letter first, 39 at most",
    f"fullnameOverride={'a' * 35} recordings.enabled=true": "fullnameOverride to a name of 34 at most",
    "fullnameOverride=Name": 'fullnameOverride: "Name" is not a valid name for objects',
    f"{_OWN} kafka.tls.caSecret=a_b": 'kafka.tls.caSecret: "a_b" is not a valid name of a Kubernetes object',
    "decode.priorityClassName=High/One": 'decode.priorityClassName: "High/One" is not a valid name of',
    "monitoring.prometheusAddress=prometheus:9090": (
        'monitoring.prometheusAddress: "prometheus:9090" is not an address of'
    ),
    "decode.autoscaling.busyShare=70": "'/decode/autoscaling/busyShare'",
    "cameraAgent.credentialSecrets={A}": 'cameraAgent.credentialSecrets[0]: "A" is not a valid name of',
    "image.pullSecrets={my/secret}": (
        'image.pullSecrets[0]: "my/secret" is not a valid name of a Kubernetes object'
    ),
    "recall.enabled=true": "set prefill.memory.keep to how much of each camera's past to keep",
    "recordings.enabled=true recordings.replicas=13": "recordings.replicas: only topics.partitions (12)",
    "recordings.enabled=true recordings.claims.A_b=cctv": (
        'recordings.claims: the name "A_b" is not a valid name of a folder'
    ),
    "prefill.memory.url=s3://chapters": "url and storage would not be used",
    "prefill.memory.keep=2h prefill.memory.endpoint=https://objects": (
        "use a prefill.memory.url that begins with s3://"
    ),
    "prefill.memory.keep=long": 'prefill.memory.keep: "long" is neither a time nor a size',
    "prefill.memory.keep=2h prefill.memory.url=s3://user@chapters": (
        'prefill.memory.url: "s3://***@chapters" is not a store'
    ),
    "prefill.settings.memory=2h": "additional properties 'memory' not allowed",
    "prefill.memory.keep=2h recall.enabled=true recall.callers.app=a networkPolicy.enabled=false": (
        "recall.callers: without NetworkPolicies every pod may call recall"
    ),
    "gateway.enabled=true gateway.replicas=2": "several pods need a shared database",
    "gateway.enabled=true gateway.database.secret=db gateway.storage.size=1Gi": "set only one of the two",
    "gateway.enabled=true gateway.ingress.enabled=true": "gateway.ingress.host: give the host name",
    "gateway.enabled=true gateway.ingress.enabled=true gateway.ingress.host=a": "gateway.callerNamespaces:",
    "notify.enabled=true": "notify.settings.notify_hosts: nothing would be sent",
    "notify.enabled=true notify.settings.notify_hosts=a notify.links.secret=l": "links lead to the gateway",
    "notify.enabled=true notify.settings.notify_hosts=a notify.push.secret=p": (
        "people turn on notifications in"
    ),
    "opinion.enabled=true": "opinion.enabled: notify asks the second model about pictures",
    f"{_OPINION} notify.settings.opinion_url=http://a/v1": "with opinion.enabled, notify asks",
    f"{_OPINION} notify.settings.opinion_key=own=key": (
        "there is only one second model; give just the file name"
    ),
    f"{_OPINION} notify.settings.opinion_key=key": "give the secret that contains this key in notify.secret",
    f"{_OPINION} opinion.gpus=1": "opinion.gpus: the image recordings is for CPUs",
    f"{_OPINION} opinion.image=prefill-gpu": "opinion.image: prefill-gpu needs a GPU",
    f"{_OPINION} opinion.model.source=url": "give the SHA-256 of the file",
    "notify.settings.notify_secrets=/tmp": "additional properties 'notify_secrets' not allowed",
    "notify.ports={0}": "'/notify/ports/0': minimum",
    "notify.networks={10.0.0.1}": 'notify.networks[0]: "10.0.0.1" is not a network',
    "gateway.oidc.clientId=a": "set gateway.oidc.issuer",
    "gateway.oidc.issuer=http://a": 'gateway.oidc.issuer: "http://a" is not an issuer',
    "gateway.oidc.issuer=https://a": "gateway.oidc.clientId: give the client id",
    "gateway.oidc.issuer=https://a gateway.oidc.clientId=a": "gateway.oidc.grants: nobody",
    "gateway.oidc.issuer=https://a gateway.oidc.clientId=a gateway.oidc.grants[0].group=a "
    "gateway.oidc.grants[0].role=viewer": "gateway.publicUrl: the provider redirects people to this URL",
    "gateway.oidc.grants[0].group=a gateway.oidc.grants[0].role=king": "'/gateway/oidc/grants/0/role'",
    "gateway.publicUrl=https://a/b": 'gateway.publicUrl: "https://a/b" is not an address of the API',
    "gateway.enabled=true gateway.keep.url=s3://me@evidence": (
        'gateway.keep.url: "s3://***@evidence" is not a store'
    ),
    "gateway.enabled=true gateway.keep.url=/evidence gateway.keep.region=e": (
        "use a gateway.keep.url that begins"
    ),
    "gateway.enabled=true gateway.keep.url=s3://e gateway.keep.limit=much": "gateway.keep.limit",
    "gateway.enabled=true gateway.keep.url=s3://e gateway.keep.region=e "
    "gateway.pod.extraEnv[0].name=AWS_REGION": "AWS_REGION: the chart sets it from gateway.keep",
    "gateway.settings.keep_url=s3://e": "additional properties 'keep_url' not allowed",
    "gateway.settings.database_url=sqlite:///x": "additional properties 'database_url' not allowed",
    "jobs.resources.request.cpu=1": "additional properties 'request' not allowed",
    "decode.resources.requests.memory=4Gi decode.resources.limits.memory=1Gi": "4Gi is more than its limit",
    "decode.resources.requests.cpu=4": "decode.resources.requests.cpu: 4 is more than its limit (2)",
    "jobs.resources.limits.memory=64": "64 is less than 16Mi",
    "tryout.redis.resources.limits.memory=0.5Mi": "0.5Mi is less than 16Mi",
    "tryout.kafka.heapMb=4096": "larger than tryout.kafka.resources.limits.memory (1536Mi)",
    "tryout.kafka.heapMb=-1": "'/tryout/kafka/heapMb': minimum",
    f"{_OWN} kafka.bootstrap=kafka:99999": 'kafka.bootstrap: "kafka:99999" is not a list of servers',
    f"{_OWN} kafka.bootstrap=http://kafka:9092": (
        'kafka.bootstrap: "http://kafka:9092" is not a list of servers'
    ),
    f"{_OWN} redis.url=redis://redis:70000": 'redis.url: "redis://redis:70000" is not an address of Redis',
    f"{_OWN} redis.url=redis://redis/abc": 'redis.url: "redis://redis/abc" is not an address of Redis',
    "settings.otlp_endpoint=collector": 'settings.otlp_endpoint: "collector" is rejected',
    "settings.otlp_endpoint=ftp://collector:4317": (
        'settings.otlp_endpoint: "ftp://collector:4317" is rejected'
    ),
    "topics.tieredLocalHours.tokens\\.v1=6": "the bundled broker (tryout.enabled=true) has no remote storage",
    f"{_OWN} topics.tieredLocalHours.tokens\\.v1=6 topics.retentionHours.tokens\\.v1=6": "must be less than",
    "pod.labels.app=x_y!": 'pod.labels.app: "x_y!" is not a valid value of a label',
    "pod.labels.a!b=x": 'pod.labels: the name "a!b" is not a valid name of a label or annotation',
    "decode.nodeSelector.a!b=x": 'decode.nodeSelector: the name "a!b" is not a valid name of',
    "serviceAccounts.annotations.a/b/c=x": (
        'serviceAccounts.annotations: the name "a/b/c" is not a valid name of'
    ),
    "networkPolicy.metricsNamespaces.name=a/b": (
        'networkPolicy.metricsNamespaces.name: "a/b" is not a valid value of a label'
    ),
    "decode.tolerations[0].operator=Sometimes": "'/decode/tolerations/0/operator'",
    "decode.updateStrategy.type=Rolling": "'/decode/updateStrategy/type'",
    "controller.updateStrategy.type=OnDelete": "'/controller/updateStrategy/type'",
    "monitoring.intervalS=0": "'/monitoring/intervalS': minimum",
    "image.prefix=registry.example:port/x-": 'image.prefix: "registry.example:port/x-" is not a beginning of',
    f"image.digests.decoder=sha256:{'0' * 64}": "additional properties 'decoder' not allowed",
    "model.source=volume model.volume.claim=c model.volume.path=../../etc": (
        'model.volume.path: "../../etc" is not a folder of the volume or image'
    ),
    "model.source=image model.image.reference=BAD:ref:x": (
        'model.image.reference: "BAD:ref:x" is not a reference of an image'
    ),
    "recordings.claims.yard=cctv": "set recordings.enabled=true",
    "recordings.decodeReplicas=1": "set recordings.enabled=true",
    "decode.gpuResource=gpu decode.gpus=1 decode.image=decode-gpu": (
        'decode.gpuResource: "gpu" is not a valid name of a resource'
    ),
    "kafka.rackLabel=zone/a/b": 'kafka.rackLabel: "zone/a/b" is not a valid name of a label',
    "pod.extraEnv[0].name=LOOKOUT_PREFIX pod.extraEnv[0].value=b.": "LOOKOUT_PREFIX: it would override",
    "alerts.pod.extraEnv[0].name=LOOKOUT_THREADS": "alerts.pod.extraEnv: LOOKOUT_THREADS: it would override",
    "decode.pod.extraEnv[0].name=OMP_NUM_THREADS": "OMP_NUM_THREADS: the chart sets it",
    "prefill.memory.keep=2h prefill.memory.url=s3://c prefill.memory.region=e "
    "pod.extraEnv[0].name=AWS_REGION": "pod.extraEnv: AWS_REGION: the chart sets it from prefill.memory",
    "pod.extraEnv[0].name=A!B": 'pod.extraEnv[0].name: "A!B" is not a valid name of a variable',
    "commonLabels.app\\.kubernetes\\.io/name=mine": "commonLabels: app.kubernetes.io/name is a label",
    "pod.labels.app\\.kubernetes\\.io/component=mine": "pod.labels: app.kubernetes.io/component is a label",
    "monitoring.labels.helm\\.sh/chart=mine": "monitoring.labels: helm.sh/chart is a label",
    "decode.settings.tenant_quotas=x": "additional properties 'tenant_quotas' not allowed",
    "tenants.quotas.acme.camera=5": "additional properties 'camera' not allowed",
    "tenants.quotas.Acme.cameras=5": 'tenants.quotas: the name "Acme" is not a valid name of a tenant',
    f"{_OWN} redis.sentinel=a/b": 'redis.sentinel: "a/b" is not a valid name of a primary',
    f"{_OWN} redis.url=redis://s?socket_timeout=5 redis.sentinel=d": "the part after ? would not be used",
    f"{_OWN} redis.url=redis://redis?x=1": 'redis.url: "redis://redis?x=1" is not an address of Redis',
    "kafka.sasl.usernameKey=": 'kafka.sasl.usernameKey: "" is not a valid key of a secret',
    "kafka.tls.caKey=a/b": 'kafka.tls.caKey: "a/b" is not a valid key of a secret',
    "kafka.options.compression\\.type=snapy": "'/kafka/options/compression.type': value must be one of",
    "kafka.options.acks=0": "kafka.options.acks: the services set this option",
    "kafka.options.session\\.timeout\\.ms=6000": "session.timeout.ms: the services set this option",
    "kafka.sasl.tokenCaSecret=ca": "set kafka.sasl.tokenUrl",
    "pod.extraVolumes[0].name=A_B": (
        'pod.extraVolumes[0].name: "A_B" is not a valid name of a volume or a container'
    ),
    "pod.extraVolumeMounts[0].name=a pod.extraVolumeMounts[0].mountPath=models": (
        'pod.extraVolumeMounts[0].mountPath: "models" is not a path'
    ),
    "pod.extraVolumes[0].name=tmp": 'pod.extraVolumes: the chart itself uses the name "tmp"',
    "decode.pod.extraContainers[0].name=decode decode.pod.extraContainers[0].image=a": (
        'decode.pod.extraContainers: the chart itself uses the name "decode"'
    ),
    "pod.extraVolumeMounts[0].name=a pod.extraVolumeMounts[0].mountPath=/etc/lookout/grpc": (
        'pod.extraVolumeMounts: the chart itself uses the mountPath "/etc/lookout/grpc"'
    ),
    "pod.extraEnv[0].name=A pod.extraEnv[1].name=A": 'pod.extraEnv: the name "A" is listed twice',
    "podAnnotations.team=yard": "podAnnotations: use pod.annotations",
    "pod.dnsPolicy=none": "'/pod/dnsPolicy': value must be one of",
    "extraObjects[0].kind=ConfigMap": "'/extraObjects/0'",
    "pod.topologySpreadConstraints[0].x=1": "additional properties 'x' not allowed",
    "pod.affinity.nodeAfinity.x=1": "additional properties 'nodeAfinity' not allowed",
    "decode.tolerations[0].key=gpu!": 'decode.tolerations[0].key: "gpu!" is not a valid key of a taint',
    "services.ipFamilies={IPv4,IPv4}": "'/services/ipFamilies'",
    "services.ipFamilies={IPv4,IPv6} services.ipFamilyPolicy=SingleStack": "give only one family",
    "decode.updateStrategy.rollingUpdate.maxUnavailable=abc": (
        'decode.updateStrategy.rollingUpdate.maxUnavailable: "abc" is not a share of'
    ),
    "prefill.memory.region=eu!central": 'prefill.memory.region: "eu!central" is not a region',
    "controller.settings.status_writes_s=0": "'/controller/settings/status_writes_s': minimum",
    "recordings.enabled=true recordings.stores.secret=objects": "these values would not be used",
    "recordings.stores.region=a/b": 'recordings.stores.region: "a/b" is not a region',
    "controller.settings.lease=mine": "additional properties 'lease' not allowed",
}
#: values that take a part of a default away, and may
TAKEN = (
    "decode.resources.limits.cpu=null",
    "networkPolicy.dnsLabels.k8s-app=null networkPolicy.dnsLabels.a=b",
)
#: what else must be refused, in a cluster that has every extension
REFUSED_EXTENDED = {
    "monitoring.podMonitor=true": "networkPolicy.metricsNamespaces: give the labels of Prometheus' namespace",
    "alerts.autoscaling.enabled=true": "monitoring.prometheusAddress: autoscaling asks Prometheus",
}


#: values, and the ports that a policy of the release must let out
OPENED = {
    "tryout.enabled=false kafka.bootstrap=a:9096\\,b:9097 redis.url=rediss://redis:7000": {9096, 9097, 7000},
    f"{_OWN} settings.otlp_endpoint=http://collector:4318": {4318},
    "tryout.enabled=false kafka.bootstrap=a:9092 redis.url=redis://s:26380\\,t:26381/0 redis.sentinel=d": {
        26380,
        26381,
        6379,
    },
    f"{_OWN} kafka.sasl.mechanism=OAUTHBEARER kafka.sasl.secret=u kafka.sasl.tokenUrl=https://idp:8443/t": {
        8443
    },
    f"{_OWN} prefill.settings.otlp_endpoint=https://collector": {443},
    "gateway.enabled=true gateway.database.secret=db gateway.database.port=6432": {6432},
    "gateway.enabled=true gateway.publicUrl=https://a gateway.oidc.issuer=https://login:8444/r "
    "gateway.oidc.clientId=a gateway.oidc.grants[0].group=a gateway.oidc.grants[0].role=viewer": {8444},
    "gateway.enabled=true gateway.keep.url=s3://evidence": {443},
    "gateway.enabled=true gateway.keep.url=s3://evidence gateway.keep.endpoint=http://objects:9000": {9000},
    "gateway.enabled=true gateway.settings.prose_url=http://m:8000/v1 gateway.settings.prose_model=m": {8000},
    "gateway.enabled=true gateway.settings.prose_url=https://models/v1 gateway.settings.prose_model=m": {443},
    "decode.settings.uri_hosts=media.example": {443},
    "notify.enabled=true notify.settings.notify_hosts=a": {443},
    "notify.enabled=true notify.settings.notify_hosts=a notify.ports={8883,80}": {8883, 80},
    _OPINION: {443, 8000, 8080},
    f"{_OPINION} opinion.model.source=url opinion.model.url.address=https://models:8443/a.tar "
    f"opinion.model.url.sha256={'0' * 64}": {443, 8000, 8080, 8443},
    "networkPolicy.meshNamespaces.name=istio-system": {15012},
    "prefill.memory.keep=2h prefill.memory.url=s3://chapters": {443, 80, 988},
    "prefill.memory.keep=2h prefill.memory.url=s3://chapters prefill.memory.endpoint=http://objects:9000": {
        9000
    },
    "decode.settings.uri_hosts=media.example decode.settings.uri_schemes=http": {443, 80},
    "recordings.enabled=true recordings.settings.recording_stores=s3://yard": {443},
    "recordings.enabled=true recordings.settings.recording_stores=s3://yard "
    "recordings.stores.endpoint=http://objects:9000": {9000},
}


#: how long pods stay on a node that is lost, or not ready
LOST = [
    {
        "key": f"node.kubernetes.io/{state}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": seconds,
    }
    for state, seconds in (("unreachable", 5), ("not-ready", 60))
]
#: values that have settings
PARTS = (
    "decode",
    "pruneEncode",
    "prefill",
    "alerts",
    "recall",
    "recordings",
    "gateway",
    "notify",
    "cameraAgent",
    "controller",
)
#: parts with a user of their own in a test; the others share one
OWN_USERS = (
    *("decode", "prune-encode", "prefill", "alerts", "recall", "recordings-plan", "recordings"),
    *("recordings-reduce", "gateway", "notify", "camera-agent", "topics"),
)


def render(
    values: Mapping[str, str],
    api_versions: Sequence[str] = (),
    release: str = "lookout",
    kubernetes: str = KUBERNETES,
) -> str:
    """Return the manifests for a set of values, in a cluster of a version that has some APIs.

    Raises:
        ToolError: helm refuses them; its words are in the message.
    """
    options = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    options += [word for each in api_versions for word in ("--api-versions", each)]
    options += ["--kube-version", kubernetes]
    done = subprocess.run(
        [str(BIN / "helm"), "template", release, str(CHART), "--namespace", "cameras", *options],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ToolError(done.stderr)
    return done.stdout


def security(manifests: str) -> dict[str, Any]:
    """Return what a security review looks at, by kind and name."""
    found = {}
    for each in yaml.safe_load_all(manifests):
        if not each:
            continue
        name = f"{each['kind']}/{each['metadata']['name']}"
        template = each.get("spec", {}).get("template", {}) if each["kind"] != "NetworkPolicy" else {}
        if pod := template.get("spec"):
            found[name] = _pod(pod)
        elif each["kind"] == "Role":
            found[name] = each["rules"]
        elif each["kind"] == "NetworkPolicy":
            found[name] = {key: each["spec"].get(key) for key in ("podSelector", "ingress", "egress")}
        elif each["kind"] == "Service":
            found[name] = {"type": each["spec"].get("type", "ClusterIP")}
    return found


def _pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "token": pod.get("automountServiceAccountToken"),
        "account": pod.get("serviceAccountName"),
        "security": pod.get("securityContext"),
        "host": [key for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)],
        "containers": {each["name"]: _container(each) for each in _containers(pod)},
        "volumes": sorted(_kind(volume) for volume in pod.get("volumes", ())),
        "unbounded": [
            each["name"]
            for each in pod.get("volumes", ())
            if not each.get("emptyDir", {"sizeLimit": 1}).get("sizeLimit")
        ],
    }


def _containers(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from pod.get("initContainers", ())
    yield from pod["containers"]


def _container(container: Mapping[str, Any]) -> dict[str, Any]:
    secrets = [each["name"] for each in container.get("env", ()) if "secretKeyRef" in str(each)]
    return {
        "security": container.get("securityContext"),
        "memory_limit": container["resources"]["limits"].get("memory"),
        "requests": sorted(container["resources"]["requests"]),
        "secrets_in_environment": secrets,
        "probes": sorted(key for key in container if key.endswith("Probe")),
    }


def _kind(volume: Mapping[str, Any]) -> str:
    return f"{volume['name']}: {next(key for key in volume if key != 'name')}"


def check() -> list[str]:
    """Lint, refusals and the snapshot; returns what is wrong."""
    wrong = []
    for chart in (CHART, CRD_CHART):
        lint = subprocess.run(
            [str(BIN / "helm"), "lint", "--strict", str(chart)], check=False, capture_output=True, text=True
        )
        if lint.returncode:
            wrong.append(f"helm lint {chart.name}: {lint.stdout[-500:]}")
    for refused, versions in ((REFUSED, ()), (REFUSED_EXTENDED, API_VERSIONS)):
        for value, words in refused.items():
            wrong += _not_refused(value, words, versions)
    for value in TAKEN:
        render(dict(pair.split("=", 1) for pair in value.split(" ")))
    for value, ports in OPENED.items():
        wrong += _closed(value, ports)
    wrong += _additions()
    wrong += _scheduled()
    wrong += _replaced()
    wrong += _settings()
    wrong += [*_without_value("", "string"), *_without_value(None, "null")]
    wrong += _names()
    wrong += _users()
    wrong += _released()
    wrong += _models()
    wrong += _old_clusters()
    wrong += _decoders()
    wrong += _disk()
    manifests = {name: render(values) for name, values in VARIANTS.items()}
    rendered = {name: security(text) for name, text in manifests.items()}
    if json.loads(SNAPSHOT.read_text()) != json.loads(json.dumps(rendered)):
        wrong.append(f"security fields differ from {SNAPSHOT.name}: look, then write it again")
    for name, objects in rendered.items():
        wrong += [f"{name}: {problem}" for problem in _problems(objects)]
        wrong += [f"{name}: {problem}" for problem in _hooks_without_network(manifests[name])]
        wrong += [f"{name}: {problem}" for problem in _downloads_without_network(manifests[name])]
    return wrong


def _additions() -> list[str]:
    """What users add to pods, accounts and services, and what of it is missing in the manifests."""
    added = {
        "pod.labels.team": "yard",
        "pod.annotations.note": "kept",
        "pod.affinity.nodeAffinity.anything": "as given",
        "pod.topologySpreadConstraints[0].topologyKey": "rack",
        "pod.topologySpreadConstraints[0].maxSkew": "2",
        "pod.topologySpreadConstraints[0].whenUnsatisfiable": "ScheduleAnyway",
        "serviceAccounts.annotations.role": "reader",
        "serviceAccounts.own.prefill.role": "writer",
        "services.ipFamilies[0]": "IPv6",
        "recordings.enabled": "true",
        "recall.enabled": "true",
        "prefill.memory.keep": "2h",
        "pod.extraEnv[0].name": "HTTP_PROXY",
        "pod.extraEnv[0].value": "http://proxy:3128",
        "pod.extraVolumes[0].name": "models",
        "pod.extraVolumeMounts[0].name": "models",
        "pod.extraVolumeMounts[0].mountPath": "/models",
        "prefill.pod.extraEnv[0].name": "SECOND",
        "prefill.pod.extraContainers[0].name": "sidecar",
        "prefill.pod.runtimeClassName": "gvisor",
        "enabled": "true",
        "settings.latency_s": "2",
        "pod.nodeSelector.pool": "cameras",
        "prefill.nodeSelector.gpu": "h100",
        "pod.tolerations[0].key": "cameras",
        "prefill.tolerations[0].key": "gpu",
        "pod.priorityClassName": "low",
        "prefill.priorityClassName": "high",
        "pod.schedulerName": "yard",
        "pod.dnsPolicy": "Default",
        "pod.dnsConfig.nameservers[0]": "192.0.2.1",
        "pod.hostAliases[0].ip": "192.0.2.2",
        "pod.hostAliases[0].hostnames[0]": "camera",
        "pod.envFrom[0].secretRef.name": "proxies",
        "pod.initContainers[0].name": "first",
        "prefill.pod.resourceClaims[0].name": "gpu",
        "prefill.resources.claims[0].name": "gpu",
        "extraObjects[0].apiVersion": "v1",
        "extraObjects[0].kind": "ConfigMap",
        "extraObjects[0].metadata.name": "lookout-mine",
        "prefill.updateStrategy.rollingUpdate.maxUnavailable": "3",
        "controller.updateStrategy.type": "Recreate",
        "services.ipFamilyPolicy": "PreferDualStack",
        "rbac.aggregate": "true",
        "kafka.rackLabel": "topology.kubernetes.io/zone",
    }
    objects = {
        (item["kind"], item["metadata"]["name"]): item
        for item in yaml.safe_load_all(render(added))
        if item and "name" in item["metadata"]
    }
    wrong = _every_pod(objects) + _placed(objects)
    for name in ("decode", "prune-encode", "prefill", "alerts"):
        pod = objects["StatefulSet", f"lookout-{name}"]["spec"]["template"]
        own = ["SECOND"] if name == "prefill" else []
        env = [entry["name"] for entry in pod["spec"]["containers"][0]["env"]]
        values = {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0]["env"]}
        labels = pod["metadata"]["labels"]
        # Kubernetes puts a variable into those behind it alone.
        options = json.loads(values.get("LOOKOUT_KAFKA_OPTIONS") or "{}")
        if options != {"client.rack": "$(KAFKA_RACK)"} or (
            env.index("KAFKA_RACK") > env.index("LOOKOUT_KAFKA_OPTIONS")
        ):
            wrong.append(f"kafka.rackLabel: {name} has {options}")
        if env[-1 - len(own) :] != ["HTTP_PROXY", *own]:
            wrong.append(f"pod.extraEnv: {name} has {env[-2:]}")
        if (labels["team"], labels["app.kubernetes.io/component"]) != ("yard", name):
            wrong.append(f"pod.labels: {name} has {labels}")
        if "/models" not in [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]]:
            wrong.append(f"pod.extraVolumeMounts: {name} lacks it")
    prefill = objects["StatefulSet", "lookout-prefill"]["spec"]
    if prefill["updateStrategy"] != {"rollingUpdate": {"maxUnavailable": 3}}:
        wrong.append(f"prefill.updateStrategy: {prefill['updateStrategy']}")
    spec = prefill["template"]["spec"]
    if (spec["containers"][1:], spec["runtimeClassName"]) != ([{"name": "sidecar"}], "gvisor"):
        wrong.append("prefill.pod: the sidecar or the runtime class is missing")
    if objects["Deployment", "lookout-controller"]["spec"]["strategy"] != {"type": "Recreate"}:
        wrong.append("controller.updateStrategy is missing")
    if objects["Service", "lookout-prefill"]["spec"]["ipFamilyPolicy"] != "PreferDualStack":
        wrong.append("services.ipFamilyPolicy is missing")
    roles = [name for kind, name in objects if kind == "ClusterRole"]
    if len(roles) != 2:
        wrong.append(f"rbac.aggregate: the ClusterRoles are {roles}")
    return wrong


def _replaced() -> list[str]:
    """What stands in a pod twice, where a part replaces an addition of all, or not at all."""
    values = {
        **VARIANTS["production"],
        "pod.extraEnv[0].name": "HTTPS_PROXY",
        "pod.extraEnv[0].value": "http://proxy:3128",
        "pod.extraVolumes[0].name": "authorities",
        "pod.extraVolumeMounts[0].name": "authorities",
        "pod.extraVolumeMounts[0].mountPath": "/authorities",
        "prefill.pod.extraEnv[0].name": "HTTPS_PROXY",
        "prefill.pod.extraEnv[0].value": "",
        "prefill.pod.extraVolumes[0].name": "authorities",
        "prefill.pod.extraVolumeMounts[0].name": "authorities",
        "prefill.pod.extraVolumeMounts[0].mountPath": "/authorities",
    }
    wrong = []
    for name, pod in _pods(render(values)).items():
        containers = [*pod["containers"], *pod.get("initContainers", ())]
        lists = [("volume", [volume["name"] for volume in pod["volumes"]])]
        lists += [("variable", [entry["name"] for entry in each.get("env", ())]) for each in containers]
        lists += [("mount", [mount["mountPath"] for mount in each["volumeMounts"]]) for each in containers]
        wrong += [f"{name}: a {what} twice: {names}" for what, names in lists if len(set(names)) < len(names)]
        for container in containers:
            proxies = [entry["value"] for entry in container.get("env", ()) if entry["name"] == "HTTPS_PROXY"]
            if name not in ("release", "credential") and proxies != (
                [""] if name == "prefill" else ["http://proxy:3128"]
            ):
                wrong.append(f"{name} {container['name']}: HTTPS_PROXY is {proxies}")
    return wrong


def _placed(objects: Mapping[tuple[str, str], Any]) -> list[str]:
    """What is said of all pods and of prefill alone places them; other objects come with the release."""
    wrong = [] if ("ConfigMap", "lookout-mine") in objects else ["extraObjects: the ConfigMap is missing"]
    for name in ("decode", "prefill", "controller", "recall"):
        kind = "Deployment" if name in {"controller", "recall"} else "StatefulSet"
        spec = objects[kind, f"lookout-{name}"]["spec"]["template"]["spec"]
        own = name == "prefill"
        expected = {
            "nodeSelector": {"pool": "cameras"} | ({"gpu": "h100"} if own else {}),
            "tolerations": [{"key": "cameras"}, *([{"key": "gpu"}] if own else []), *LOST],
            "priorityClassName": "high" if own else "low",
            "schedulerName": "yard",
            "dnsPolicy": "Default",
            "dnsConfig": {"nameservers": ["192.0.2.1"]},
            "hostAliases": [{"ip": "192.0.2.2", "hostnames": ["camera"]}],
            "initContainers": [{"name": "first"}],
            "resourceClaims": [{"name": "gpu"}] if own else None,
        }
        wrong += [
            f"{key} of {name} is {spec.get(key)}" for key, value in expected.items() if spec.get(key) != value
        ]
        container = spec["containers"][0]
        if container.get("envFrom") != [{"secretRef": {"name": "proxies"}}]:
            wrong.append(f"pod.envFrom: {name} has {container.get('envFrom')}")
        if "LOOKOUT_LATENCY_S" not in [entry["name"] for entry in container["env"]]:
            wrong.append(f"settings: {name} lacks LOOKOUT_LATENCY_S")
    return wrong


def _every_pod(objects: Mapping[tuple[str, str], Any]) -> list[str]:
    """What of the additions to all pods and accounts is missing in one."""
    pods = {
        name: item["spec"]["template"]
        for (kind, name), item in objects.items()
        if kind in ("StatefulSet", "Deployment") and "tryout" not in name
    }
    stages = {"decode", "prune-encode", "prefill", "alerts", "recall", "controller"}
    expected = {f"lookout-{name}" for name in (*stages, "recordings", "recordings-plan", "recordings-reduce")}
    wrong = [] if set(pods) == expected else [f"the pods are {sorted(pods)}"]
    for (kind, name), item in objects.items():
        if kind == "StatefulSet" and ("Service", item["spec"]["serviceName"]) not in objects:
            wrong.append(f"{name}: there is not a Service {item['spec']['serviceName']}")
    for name, pod in pods.items():
        facts = (pod["metadata"].get("annotations"), pod["spec"].get("affinity"))
        if facts != ({"note": "kept"}, {"nodeAffinity": {"anything": "as given"}}):
            wrong.append(f"pod.annotations, pod.affinity: {name} has {facts}")
        own = [{"topologyKey": "rack", "maxSkew": 2, "whenUnsatisfiable": "ScheduleAnyway"}]
        if (spread := pod["spec"].get("topologySpreadConstraints", own)) != own:
            wrong.append(f"pod.topologySpreadConstraints: {name} has {spread}")
        account = pod["spec"]["serviceAccountName"]
        given = objects["ServiceAccount", account]["metadata"].get("annotations")
        if (account, given) != (name, {"role": "writer" if name == "lookout-prefill" else "reader"}):
            wrong.append(f"serviceAccounts: {name} has {account} with {given}")
    return wrong


def _scheduled() -> list[str]:
    """Where pods go by default: to different nodes, also where these have no zone; with GPUs to any GPU."""
    gpus = {
        "prefill.gpus": "1",
        "prefill.image": "prefill-gpu",
        "prefill.gpuResource": "nvidia.com/mig-3g.40gb",
        "prefill.gpuTaint": "gpus",
    }
    spec = _pods(render(gpus))["prefill"]
    claims = {
        "prefill.image": "prefill-gpu",
        "prefill.pod.resourceClaims[0].name": "gpu",
        "prefill.resources.claims[0].name": "gpu",
    }
    resources = _pods(render(claims))["prefill"]["containers"][0]["resources"]
    wrong = [] if resources.get("claims") == [{"name": "gpu"}] else [f"prefill.resources.claims: {resources}"]
    if spec["tolerations"] != [{"key": "gpus", "operator": "Exists", "effect": "NoSchedule"}, *LOST]:
        wrong.append(f"prefill.gpuTaint: {spec['tolerations']}")
    if spec["containers"][0]["resources"]["limits"].get("nvidia.com/mig-3g.40gb") != 1:
        wrong.append("prefill.gpuResource is missing")
    if [each["topologyKey"] for each in spec["topologySpreadConstraints"]] != ["kubernetes.io/hostname"]:
        wrong.append(f"nodes without a zone switch off {spec['topologySpreadConstraints']}")
    zones = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    labels = zones[0]["podAffinityTerm"]["labelSelector"]["matchLabels"]
    if labels.get("app.kubernetes.io/component") != "prefill":
        wrong.append(f"zones: prefill keeps away from {labels}")
    scaled = {**EXTENDED, "monitoring.prometheusAuthentication": "prometheus"}
    objects = [item for item in yaml.safe_load_all(render(scaled, API_VERSIONS)) if item]
    triggers = [
        trigger for item in objects if item["kind"] == "ScaledObject" for trigger in item["spec"]["triggers"]
    ]
    if {str(trigger.get("authenticationRef")) for trigger in triggers} != {"{'name': 'prometheus'}"}:
        wrong.append(f"monitoring.prometheusAuthentication is missing in a trigger: {triggers}")
    return wrong


def _settings() -> list[str]:
    """Settings of one part, and of the two that share them, that a pod lacks."""
    given = {
        "controller.settings.status_writes_s": "40",
        "tenants.quotas.acme.cameras": "900",
        "tenants.intervalS": "30",
        "recordings.enabled": "true",
        "recordings.settings.recording_stores": "s3://yard",
        "recordings.stores.endpoint": "http://objects:9000",
        "recordings.stores.secret": "objects",
        "prefill.memory.keep": "2h",
        "recall.enabled": "true",
        "gateway.enabled": "true",
        "gateway.publicUrl": "https://lookout.example.org",
        "notify.enabled": "true",
        "notify.secret": "targets",
        "notify.links.secret": "links",
        "notify.push.secret": "push",
        "notify.settings.notify_hosts": "hooks.example.org",
        "opinion.enabled": "true",
        "opinion.model.source": "volume",
        "opinion.model.volume.claim": "models",
        "opinion.model.volume.path": "second",
    }
    variables = {name: _variables(pod) for name, pod in _pods(render(given)).items()}
    quotas = {"LOOKOUT_TENANT_QUOTAS": '{"acme":{"cameras":900}}', "LOOKOUT_TENANT_INTERVAL_S": "30"}
    store = {"AWS_ENDPOINT_URL": "http://objects:9000", "AWS_ALLOW_HTTP": "true"}
    wanted = {
        "controller": {"LOOKOUT_STATUS_WRITES_S": "40", "LOOKOUT_NOTIFICATIONS": "true"},
        "gateway": {
            "LOOKOUT_RECALL": "lookout-recall:50051",
            "LOOKOUT_NOTIFY": "lookout-notify:50051",
            "LOOKOUT_LINK_KEY_FILE": "/etc/lookout/links/key",
            "LOOKOUT_PUSH_KEY_FILE": "/etc/lookout/push/key",
        },
        "notify": {
            "LOOKOUT_NOTIFY_HOSTS": "hooks.example.org",
            "LOOKOUT_NOTIFY_SECRETS": "/etc/lookout/notify-secrets",
            "LOOKOUT_PUBLIC_URL": "https://lookout.example.org",
            "LOOKOUT_GATEWAY_URL": "http://lookout-gateway",
            "LOOKOUT_PUSH_KEY_FILE": "/etc/lookout/push/key",
            "LOOKOUT_LINK_KEY_FILE": "/etc/lookout/links/key",
            "LOOKOUT_OPINION_URL": "http://lookout-opinion:8000/v1",
            "LOOKOUT_OPINION_MODEL": "opinion",
        },
        "opinion": {"LOOKOUT_MODEL_DIR": "/model/second"},
        **dict.fromkeys(("decode", "prefill", "recall"), quotas),
        **dict.fromkeys(("recordings", "recordings-plan"), store),
    }
    wrong = [
        f"{name}: {set(expected) - set(variables[name])} of {expected}"
        for name, expected in wanted.items()
        if not expected.items() <= variables[name].items()
    ]
    for name, found in variables.items():
        others = {"LOOKOUT_TENANT_QUOTAS", "LOOKOUT_STATUS_WRITES_S", "AWS_ENDPOINT_URL", "LOOKOUT_RECALL"}
        if extra := (others - set(wanted.get(name, ()))) & set(found):
            wrong.append(f"{name} has {extra}")
    return wrong


def _names() -> list[str]:
    """Names that Kubernetes would not take, of releases with the longest names there are."""
    everything = {
        **EXTENDED,
        "prefill.memory.keep": "2h",
        "recall.enabled": "true",
        "recordings.decodeReplicas": "1",
    }
    recordings = {"recordings.enabled": "true", "fullnameOverride": "a" * 34}
    wrong = []
    for values in ({**everything, "recordings.decodeReplicas": "0"}, {**everything, **recordings}):
        for item in yaml.safe_load_all(render(values, API_VERSIONS, "a" * 53)):
            kind, name = (item["kind"], item["metadata"].get("name", "")) if item else ("", "")
            # Objects of policies and extensions, which no label and no host name repeats, may be longer.
            limit = {"StatefulSet": 52, "Service": 63, "Deployment": 63, "Job": 63}.get(kind, 253)
            if len(name) > limit:
                wrong.append(f"{kind} {name}: {len(name)} characters")
    return wrong


def _without_value(given: str | None, kind: str) -> Iterator[str]:
    """Settings that are no texts and are not refused by name and in one line where they have no value."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    wanted: list[str] = []
    values: dict[str, Any] = {}
    for path in (*(f"{part}.settings" for part in PARTS), "settings"):
        found, inner = schema, values
        for name in path.split("."):
            found, inner = found["properties"][name], inner.setdefault(name, {})
        for name, facts in found["properties"].items():
            if facts.get("type") in ("integer", "number", "boolean"):
                inner[name] = given
                wanted.append(f"at '/{path.replace('.', '/')}/{name}': got {kind}, want {facts['type']}")
    done = subprocess.run(
        [str(BIN / "helm"), "template", "lookout", str(CHART), "--values", "-"],
        check=False,
        capture_output=True,
        text=True,
        input=json.dumps(values),
    )
    if not wanted or "anyOf" in done.stderr:
        yield f"settings as {kind}: {done.stderr[:300]}"
    yield from (f"{line}: is not said" for line in wanted if line not in done.stderr)


def _users() -> list[str]:
    """Parts with a user and a certificate of their own, and whose secrets their pods have."""
    given = {
        **VARIANTS["production"],
        **{f"kafka.sasl.secrets.{name}": f"user-{name}" for name in OWN_USERS},
        **{f"kafka.tls.clientSecrets.{name}": f"certificate-{name}" for name in OWN_USERS},
    }
    wrong = []
    pods = _pods(render(given))
    if missing := set(OWN_USERS) - set(pods):
        wrong.append(f"no pods of {missing}")
    for name, pod in pods.items():
        owner = {"recordings-decode": "recordings", "test": "topics"}.get(name, name)
        user, certificate = (
            (f"user-{owner}", f"certificate-{owner}")
            if owner in OWN_USERS
            else ("kafka-user", "kafka-client")
        )
        volumes = {
            volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume
        }
        if "kafka-user" not in volumes:
            if any(key.startswith("LOOKOUT_KAFKA") for key in _variables(pod)):
                wrong.append(f"{name} has no password for Kafka")
            continue
        secrets = (volumes["kafka-user"], volumes["kafka-client"])
        if secrets != (user, certificate):
            wrong.append(f"{name}: user and certificate are of {secrets}")
        wrong += _not_followed(name, pod)
    return wrong


def _not_followed(name: str, pod: Mapping[str, Any]) -> list[str]:
    """What a pod has of a secret as a variable, which it would keep when the secret changes."""
    entries = [entry for container in pod["containers"] for entry in container.get("env", ())]
    fixed = [entry["name"] for entry in entries if "secretKeyRef" in entry.get("valueFrom", ())]
    files = [entry["value"] for entry in entries if entry["name"].endswith("_FILE") and "value" in entry]
    mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    wrong = [f"{name}: {variable} does not follow its secret" for variable in fixed]
    return wrong + [
        f"{name}: {file} is in no mounted secret"
        for file in files
        if not file.startswith("/tmp/") and file.rpartition("/")[0] not in mounts  # the gateway's own link
    ]


def _released() -> list[str]:
    """Jobs that let go of resources where the controller is turned off, and what they would take along."""
    wrong = []
    for values, events in (
        ({}, {"pre-delete"}),
        ({"controller.enabled": "false"}, {"pre-delete", "pre-upgrade"}),
        ({"controller.enabled": "false", "grpc.secret": "own"}, {"pre-upgrade"}),
    ):
        manifests = render(values)
        jobs = {
            event: item["spec"]["template"]["spec"]["containers"][0]["args"]
            for item in yaml.safe_load_all(manifests)
            if item and item["kind"] == "Job" and "release" in item["metadata"]["name"]
            for event in _hook(item)
        }
        if set(jobs) != events:
            wrong.append(f"{values}: resources are let go at {sorted(jobs)}")
        if any(option.startswith("--secret") for option in jobs.get("pre-upgrade", ())):
            wrong.append("an upgrade would delete the certificate")
        wrong += _hooks_without_network(manifests)
    return wrong


def _pods(manifests: str) -> dict[str, Any]:
    """Specifications of pods by the part of the release."""
    return {
        item["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"][
            "template"
        ]["spec"]
        for item in yaml.safe_load_all(manifests)
        if item and item["kind"] in ("StatefulSet", "Deployment", "Job")
    }


def _variables(pod: Mapping[str, Any]) -> dict[str, str]:
    """Environment of a pod's first container; empty where a value comes from elsewhere."""
    return {variable["name"]: variable.get("value", "") for variable in pod["containers"][0].get("env", ())}


def _models() -> list[str]:
    """Which stages fetch a model: decode needs none where its input's size is set."""
    source = {
        "model.source": "url",
        "model.url.address": "https://models/m.tar",
        "model.url.sha256": "a" * 64,
    }
    size = {f"decode.settings.{name}": "448" for name in ("input_width", "input_height")}
    wrong = []
    for values, needed in ((source, True), ({**source, **size, "decode.settings.patch": "14"}, False)):
        stages = {
            item["metadata"]["name"]: item["spec"]["template"]["spec"]
            for item in yaml.safe_load_all(render(values))
            if item and item["kind"] == "StatefulSet"
        }
        for name, expected in (("lookout-decode", needed), ("lookout-prune-encode", True)):
            if (fetches := bool(stages[name].get("initContainers"))) != expected:
                wrong.append(f"{name}: fetches a model: {fetches}, with {sorted(values)}")
    return wrong + _halves(source)


def _halves(source: Mapping[str, str]) -> list[str]:
    """Which pods fetch tower and projector alone, where the chart is told of an archive with these."""
    half = {"model.url.vision.address": "https://models:8443/half.tar", "model.url.vision.sha256": "b" * 64}
    memory = {"prefill.memory.keep": "2h", "recall.enabled": "true"}
    recordings = {"recordings.enabled": "true", "recordings.decodeReplicas": "1"}
    towers = ("decode", "prune-encode", "recordings-decode", "recordings-plan")
    wanted = dict.fromkeys((f"lookout-{name}" for name in towers), "b" * 64)
    fetched, lean = {}, set()
    for item in yaml.safe_load_all(render({**source, **half, **memory, **recordings})):
        if item and item["kind"] in ("StatefulSet", "Deployment"):
            for container in item["spec"]["template"]["spec"].get("initContainers", ()):
                variables = {variable["name"]: variable.get("value") for variable in container["env"]}
                fetched[item["metadata"]["name"]] = variables["LOOKOUT_MODEL_SHA256"]
                if "--without-weights" in container["command"]:
                    lean.add(item["metadata"]["name"])
    whole = set(fetched) - set(wanted)
    wanted |= dict.fromkeys(whole, "a" * 64)
    missing = {"lookout-prefill", "lookout-recall", "lookout-recordings"} - whole
    wrong = [f"these archives are fetched: {fetched}"] if fetched != wanted or missing else []
    # Jobs are planned with configuration and tokenizer, and their outcomes collected without a model.
    if lean != {"lookout-recordings-plan"} or "lookout-recordings-reduce" in fetched:
        wrong.append(f"{lean} fetch no weights, {set(fetched)} fetch a model")
    return wrong


def _decoders() -> list[str]:
    """What decides how many decoding processes a part has: the pod's CPU limit, or the setting; once."""
    limit = {"valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1"}}}
    wrong = []
    for values, expected in (({}, limit), ({"recordings.settings.decoders": "3"}, {"value": "3"})):
        manifests = render({"recordings.enabled": "true", "recordings.decodeReplicas": "1", **values})
        pods = {
            item["metadata"]["name"]: item["spec"]["template"]["spec"]["containers"][0]["env"]
            for item in yaml.safe_load_all(manifests)
            if item and item["kind"] == "StatefulSet" and "recordings" in item["metadata"]["name"]
        }
        for name, variables in pods.items():
            given = [variable for variable in variables if variable["name"] == "LOOKOUT_DECODERS"]
            if given != [{"name": "LOOKOUT_DECODERS", **expected}]:
                wrong.append(f"{name}: LOOKOUT_DECODERS is {given} with {values}")
    return wrong


def _disk() -> list[str]:
    """Pods that copy recordings request the disk for it, or what is set; who collects answers needs none."""
    values = {"recordings.enabled": "true", "recordings.decodeReplicas": "1"}
    pods = _pods(render({**values, "recordings.resources.requests.ephemeral-storage": "3Gi"}))
    found = {
        part: pod["containers"][0]["resources"]["requests"].get("ephemeral-storage")
        for part, pod in pods.items()
        if part.startswith("recordings")
    }
    expected = {
        "recordings": "3Gi",
        "recordings-decode": "3Gi",
        "recordings-plan": "1Gi",
        "recordings-reduce": None,
    }
    return [] if found == expected else [f"disk that recordings request: {found}"]


def _not_refused(value: str, words: str, api_versions: Sequence[str]) -> list[str]:
    try:
        render(dict(each.split("=", 1) for each in value.split(" ")), api_versions)
    except ToolError as error:
        return [] if words in str(error) else [f"{value} was refused without {words!r}: {str(error)[:300]}"]
    return [f"{value} was not refused"]


def _old_clusters() -> list[str]:
    """What an older Kubernetes lacks is refused there, not rendered."""
    image = {"source": "image", "image.reference": "localhost/model:1"}
    wrong = []
    for part, others in (("model", {}), ("canary.model", {"canary.enabled": "true"})):
        values = {**others, **{f"{part}.{name}": value for name, value in image.items()}}
        render(values, kubernetes="1.33.0")
        try:
            render(values, kubernetes="1.32.9")
            wrong.append(f"{part}.source=image was not refused by Kubernetes 1.32")
        except ToolError as error:
            if f"{part}.source: image needs Kubernetes 1.33 or newer" not in str(error):
                wrong.append(str(error)[:300])
    return wrong


def _closed(value: str, ports: set[int]) -> list[str]:
    manifests = render(dict(pair.split("=", 1) for pair in value.split(" ")))
    policies = [item for item in yaml.safe_load_all(manifests) if item and item["kind"] == "NetworkPolicy"]
    opened = {
        port["port"]
        for policy in policies
        for rule in policy["spec"].get("egress", ())
        for port in rule.get("ports", ())
    }
    return [f"{value}: no NetworkPolicy lets port {port} out" for port in sorted(ports - opened)]


def _hooks_without_network(manifests: str) -> Iterator[str]:
    """Jobs that helm runs without the release's objects: each needs a policy that comes and goes with it."""
    found = [each for each in yaml.safe_load_all(manifests) if each]
    policies = [each for each in found if each["kind"] == "NetworkPolicy" and _hook(each)]
    for policy in policies:
        name = policy["metadata"]["name"]
        if not {"hook-succeeded", "hook-failed"} <= _hook(policy, "hook-delete-policy"):
            yield f"NetworkPolicy {name} would stay"
        if set(policy["spec"]["policyTypes"]) != {"Ingress", "Egress"}:
            yield f"NetworkPolicy {name} does not deny what it does not name"
    for job in found:
        events = (
            {event for event in _hook(job) if event.startswith("pre-")} if job["kind"] == "Job" else set()
        )
        labels = job["spec"]["template"]["metadata"]["labels"].items() if events else ()
        for event in events:
            if not any(
                event in _hook(policy)
                and int(*_hook(policy, "hook-weight")) < int(*_hook(job, "hook-weight"))
                and policy["spec"]["podSelector"]["matchLabels"].items() <= labels
                and policy["spec"].get("egress")
                for policy in policies
            ):
                yield f"Job {job['metadata']['name']}, {event}: no NetworkPolicy lets it out"


def _downloads_without_network(manifests: str) -> Iterator[str]:
    """Parts that fetch a model, and that no policy lets reach it."""
    policies = [item for item in yaml.safe_load_all(manifests) if item and item["kind"] == "NetworkPolicy"]
    allowed = {
        part
        for policy in policies
        if policy["metadata"]["name"].endswith("-model")
        for expression in policy["spec"]["podSelector"]["matchExpressions"]
        for part in expression["values"]
    }
    for part, pod in _pods(manifests).items():
        fetches = any(container["name"] == "model" for container in pod.get("initContainers", ()))
        if policies and fetches and part not in allowed:
            yield f"{part} fetches a model, and no policy lets it reach the archive"


def _hook(manifest: Mapping[str, Any], key: str = "hook") -> set[str]:
    """Return the events of a hook, or another of its annotations, empty for what is none."""
    text = manifest["metadata"].get("annotations", {}).get(f"helm.sh/{key}", "")
    return set(filter(None, text.split(",")))


def _problems(objects: Mapping[str, Any]) -> Iterator[str]:
    """What the `restricted` standard and the chart's own promises forbid."""
    for name, facts in objects.items():
        if "containers" not in facts:
            continue
        if facts["host"]:
            yield f"{name} uses {facts['host']}"
        if facts["token"] and not any(part in name for part in ("controller", "credential", "release")):
            yield f"{name} gets a token of the API"
        for container, details in facts["containers"].items():
            context = details["security"]
            expected = {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            }
            if context != expected:
                yield f"{name} {container}: {context}"
            if not details["memory_limit"] or not {"cpu", "memory"} <= set(details["requests"]):
                yield f"{name} {container} has no memory limit, or requests no CPU or memory"
        if facts["unbounded"]:
            yield f"{name} may fill its node's disk: {facts['unbounded']}"


def dry_run(cluster: Cluster, namespace: str) -> list[str]:
    """Let the API server check every manifest without keeping any; returns what it refuses."""
    return [
        f"{name}: {line}"
        for name, values in VARIANTS.items()
        for line in complaints(cluster, namespace, render(values))
    ]


def fixed_claims(cluster: Cluster, namespace: str) -> list[str]:
    """Upgrade a release to other claims; returns what is not refused in words. No pod needs to run."""
    options = ("lookout", str(CHART), "--namespace", namespace, "--no-hooks", "--skip-crds")
    memory = ("prefill.memory.keep=2h", "prefill.memory.storage.size=1Gi")
    broker = ("tryout.kafka.storage.size=1024Mi",)

    def helm(command: str, *values: str) -> str:
        given = [word for value in values for word in ("--set", value)]
        return cluster.helm(command, *options, *given, check=False)

    wrong = []
    helm("install", *memory, *broker)
    for values, words in (
        ((*memory, "tryout.kafka.storage.size=2Gi"), 'tryout.kafka.storage: size="2Gi"'),
        (memory, 'tryout.kafka.storage: size=""'),
        (broker, 'prefill.memory.storage: size=""'),
        (
            (*memory, *broker, "prefill.memory.storage.className=fast"),
            'className="fast", and',
        ),
        ((*memory, "tryout.kafka.storage.size=1Gi"), "has been upgraded"),  # as much as 1024Mi
    ):
        said = helm("upgrade", *values)
        if words not in said:
            wrong.append(f"an upgrade with {values} says no {words!r}: {said[-400:]}")
    cluster.helm("uninstall", "lookout", "--namespace", namespace, "--no-hooks", "--wait")
    cluster.kubectl("delete", "pvc", "--all", "-n", namespace)
    return wrong


def namespace_admin(cluster: Cluster, namespace: str) -> list[str]:
    """Install with the role admin and the rights that the guide names; returns what is not as it says."""
    who = f"system:serviceaccount:{namespace}:installer"
    options = ("lookout", "--namespace", namespace, "--no-hooks", "--kube-as-user", who)

    def install() -> str:
        return cluster.helm("install", *options, str(CHART), "--skip-crds", check=False)

    # An administrator comes first, as the guide says: kubectl makes no role for kinds that do not exist.
    cluster.helm("install", "lookout-crds", str(CRD_CHART), "--namespace", namespace, "--take-ownership")
    cluster.kubectl("-n", namespace, "create", "serviceaccount", "installer")
    account = f"--serviceaccount={namespace}:installer"
    cluster.kubectl("-n", namespace, "create", "rolebinding", "installer", "--clusterrole=admin", account)
    wrong = []
    if "permissions not currently held" not in (said := install()):
        wrong.append(f"without the guide's rights: {said[-300:]}")
    cluster.helm("uninstall", "lookout", "--namespace", namespace, "--no-hooks", "--wait", check=False)
    guide = (workshop.ROOT / "docs" / "kubernetes.md").read_text()
    here = guide.replace("-n cameras", f"-n {namespace}").replace("cameras:in", f"{namespace}:in")
    for command in re.findall(r"^kubectl (create \w+ lookout-install .*)$", here, re.MULTILINE):
        cluster.kubectl(*command.split())
    if "deployed" not in (said := install()):
        wrong.append(f"with the guide's rights: {said[-300:]}")
    cluster.helm("uninstall", *options, "--wait")
    cluster.kubectl("delete", "clusterrole", "lookout-install")
    cluster.helm("uninstall", "lookout-crds", "--namespace", namespace, "--wait")
    return wrong


def complaints(cluster: Cluster, namespace: str, manifests: str) -> list[str]:
    """Return what the API server says against manifests."""
    options = ("--dry-run=server", "--validate=strict", "-n", namespace)
    said = cluster.kubectl("apply", *options, "-f", "-", stdin=manifests, check=False)
    words = ("rror", "orbidden", "arning", "nvalid", "o matches for kind")
    return [line[:300] for line in said.splitlines() if any(word in line for word in words)]


def main() -> int:
    """Check, or write the snapshot."""
    if "--write" in sys.argv:
        rendered = {name: security(render(values)) for name, values in VARIANTS.items()}
        SNAPSHOT.write_text(json.dumps(rendered, indent=1, sort_keys=True) + "\n")
        return 0
    wrong = check()
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
