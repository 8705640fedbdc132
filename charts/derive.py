"""Write the chart's derived files: ``python charts/derive.py`` (``--check`` only compares).

* ``values.schema.json``: types from values.yaml, the constraints below, settings from the services' classes;
* ``README.md``: every value with its comment and default, every setting with its description;
* ``files/forms.json``: forms that values must have, with words for those that have not: helm would print a
  regular expression of the schema as it is, so the template `lookout.forms` looks at them instead;
* ``files/topics.json``: the topic table of `lookout.wire`;
* ``lookout-crds``: the definitions of ``crds`` as a chart of their own, which helm upgrades;
* ``Chart.yaml``: version of the project; images, and what CHANGELOG.md says of the chart, for Artifact Hub;
* ``crds``: bounds whose line ends with ``# maximum = NAME`` get the number of that name in
`lookout.wire.limits`, and the first version is repeated for each of `VERSIONS`.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from lookout import text as outside_text
from lookout.runtime.tenants import TenantQuota
from lookout.runtime.worker import ServiceSettings
from lookout.services.camera_agent.settings import AgentSettings
from lookout.services.controller.settings import ControllerSettings
from lookout.services.decode.settings import DecodeSettings
from lookout.services.gateway.settings import GatewaySettings
from lookout.services.notify.settings import NotifySettings
from lookout.services.prefill.settings import PrefillSettings
from lookout.services.prune_encode.settings import PruneEncodeSettings
from lookout.services.recall.settings import RecallSettings
from lookout.services.recordings.settings import RecordingsSettings
from lookout.wire import all_topics, limits

CHART = Path(__file__).parent / "lookout"
ROOT = CHART.parents[1]
#: annotations of Chart.yaml that are derived stand behind this line
_DERIVED = "  # written by make chart\n"
#: limits of the wire, and of texts from outside
_BOUNDS = vars(outside_text) | vars(limits)
#: which bound of a line of a CRD is a number of `lookout.wire.limits`
_BOUND = re.compile(r"# (\w+) = ([A-Z_]+)$")
#: settings that the chart itself sets; they are no values
FIXED = frozenset(
    {
        "advertise",
        "bootstrap",
        "camera_networks",
        "canary",
        "credential",
        "credential_days",
        "credentials",
        "database_url",
        "database_url_file",
        "group",
        "gateway_url",
        "grpc_port",
        "host",
        "http_cert_file",
        "http_key_file",
        "http_port",
        "instance",
        "kafka_options",
        "holders",
        "keep_bytes",
        "keep_url",
        "lease",
        "link_key_file",
        "pods",
        "memory",
        "memory_dir",
        "memory_url",
        "metrics_port",
        "mode",
        "notifications",
        "notify_secrets",
        "opinion_networks",
        "oidc",
        "public_url",
        "push_key_file",
        "model_digest",
        "model_dir",
        "prefix",
        "recording_roots",
        "recordings",
        "release",
        "namespace",
        "redis_url",
        "sign_in_file",
        "tenant_interval_s",
        "tenant_quotas",
    }
)
#: prefixes of settings that the chart makes from its values of Kafka, Redis and the fleet's credential
SECURITY = ("kafka_", "redis_", "grpc_")
SETTINGS: dict[str, type[ServiceSettings]] = {
    "settings": ServiceSettings,
    "decode.settings": DecodeSettings,
    "pruneEncode.settings": PruneEncodeSettings,
    "prefill.settings": PrefillSettings,
    "alerts.settings": ServiceSettings,
    "recall.settings": RecallSettings,
    "recordings.settings": RecordingsSettings,
    "gateway.settings": GatewaySettings,
    "notify.settings": NotifySettings,
    "cameraAgent.settings": AgentSettings,
    "controller.settings": ControllerSettings,
}
#: what is wrong with a value of another form and what to write, by the regular expression of the form
WORDS: dict[str, str] = {}


def _form(pattern: str, words: str) -> str:
    """Return a regular expression, with words for values that it does not match."""
    WORDS[pattern] = words
    return pattern


#: what Kubernetes takes for the name of a label or an annotation
_KEY = _form(
    r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
    "not a valid name of a label or annotation: letters, digits, - _ and ., with a letter or digit at both "
    "ends, 63 "
    "at most, and before a / a domain, as in example.com/team",
)
# Not `propertyNames`: helm then names another value than the one that is wrong.
_TEXT_MAP = {"type": "object", "additionalProperties": False, "patternProperties": {_KEY: {"type": "string"}}}
#: what Kubernetes takes for the value of a label
_LABEL = _form(
    r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$",
    "not a valid value of a label: letters, digits, - _ and ., with a letter or digit at both ends, 63 at "
    "most, as in "
    "yard-1",
)
_LABELS = {
    "type": "object",
    "additionalProperties": False,
    "patternProperties": {_KEY: {"type": "string", "pattern": _LABEL}},
}
_QUANTITY = {
    "type": "string",
    "pattern": _form(
        r"^([0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?)?$",
        "not a size: a number and Ki, Mi, Gi, Ti, k, M, G or T, as in 20Gi",
    ),
}
_RESOURCES = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        kind: {
            "type": "object",
            # 4GB is not a quantity of Kubernetes: it is 4G or 4Gi
            "additionalProperties": {
                "type": ["string", "number"],
                "pattern": _form(
                    r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$",
                    "not a quantity: a number and m, Ki, Mi, Gi, Ti, Pi, k, M, G, T or P, as in 500m or 4Gi",
                ),
            },
        }
        for kind in ("requests", "limits")
    }
    | {"claims": {"type": "array", "items": {"type": "object", "required": ["name"]}}},
}
#: names of Kubernetes objects (RFC 1123), or nothing
_NAME = {
    "type": "string",
    "pattern": _form(
        r"^$|^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$",
        "not a valid name of a Kubernetes object: lowercase letters, digits, - and ., with a letter or "
        "digit at both "
        "ends, as in kafka-user",
    ),
}
_NAMES = {"type": "array", "items": {**_NAME, "minLength": 1}}
#: names of keys in a Secret
_SECRET_KEY = {
    "type": "string",
    "pattern": _form(
        "^[-._a-zA-Z0-9]{1,253}$", "not a valid key of a secret: letters, digits, - _ and ., as in ca.crt"
    ),
}
#: names of volumes and containers (RFC 1123)
_LABEL_NAME = {
    "type": "string",
    "pattern": _form(
        "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        "not a valid name of a volume or a container: lowercase letters, digits and -, with a letter or "
        "digit at both "
        "ends, 63 at most, as in models",
    ),
}
#: keys of taints
_TAINT = _form(
    rf"^$|{_KEY}",
    "not a valid key of a taint: letters, digits, - _ and ., before a / a domain, as in nvidia.com/gpu",
)
_TOLERATIONS = {
    "type": "array",
    "items": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "key": {"type": "string", "pattern": _TAINT},
            "operator": {"enum": ["Exists", "Equal", "Lt", "Gt"]},
            "value": {"type": "string", "pattern": _LABEL},
            "effect": {"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
            "tolerationSeconds": {"type": "integer"},
        },
    },
}
#: parts of a release that are clients of Kafka, as the table of rights in docs/kubernetes.md has them
_CLIENTS = (
    *("decode", "prune-encode", "prefill", "alerts", "recall", "recordings-plan", "recordings"),
    *("recordings-reduce", "gateway", "notify", "controller", "camera-agent", "topics"),
)
#: images of docker/build.py
_IMAGES = (
    *("alerts", "decode", "prune-encode", "prefill", "recall", "recordings", "controller", "camera-agent"),
    *("gateway", "notify", "tryout", "decode-gpu", "prune-encode-gpu", "prefill-gpu"),
)
_OWN_SECRETS = {
    "type": "object",
    "additionalProperties": False,
    "properties": {name: {**_NAME, "minLength": 1} for name in _CLIENTS},
}


def _named(name: dict[str, Any], *required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    """A list of objects with a name."""
    items = {"type": "object", "required": ["name", *required], "properties": {"name": name, **properties}}
    return {"type": "array", "items": items}


_VARIABLES = _named(
    {
        "type": "string",
        "pattern": _form(
            "^[-._a-zA-Z][-._a-zA-Z0-9]*$",
            "not a valid name of a variable: letters, digits, - _ and ., no digit first, as in HTTP_PROXY",
        ),
    },
    value={"type": "string"},
    valueFrom={"type": "object"},
)
_VARIABLES["items"]["additionalProperties"] = False
_AFFINITY = {
    "type": "object",
    "additionalProperties": False,
    "properties": {name: {"type": "object"} for name in ("nodeAffinity", "podAffinity", "podAntiAffinity")},
}
_SPREAD = {
    "type": "array",
    "items": {
        "type": "object",
        "additionalProperties": False,
        "required": ["maxSkew", "topologyKey", "whenUnsatisfiable"],
        "properties": {
            "maxSkew": {"type": "integer", "minimum": 1},
            "minDomains": {"type": "integer", "minimum": 1},
            "topologyKey": {"type": "string", "pattern": _KEY},
            "whenUnsatisfiable": {"enum": ["DoNotSchedule", "ScheduleAnyway"]},
            "labelSelector": {"type": "object"},
            "matchLabelKeys": {"type": "array", "items": {"type": "string", "pattern": _KEY}},
            "nodeAffinityPolicy": {"enum": ["Honor", "Ignore"]},
            "nodeTaintsPolicy": {"enum": ["Honor", "Ignore"]},
        },
    },
}
_POD = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "labels": _LABELS,
        "annotations": _TEXT_MAP,
        "extraEnv": _VARIABLES,
        "extraVolumes": _named(_LABEL_NAME),
        "extraVolumeMounts": _named(
            _LABEL_NAME,
            "mountPath",
            mountPath={
                "type": "string",
                "pattern": _form("^/[^:]*$", "not a path: it begins with / and has no colon, as in /models"),
            },
        ),
        "extraContainers": _named(_LABEL_NAME),
        "affinity": _AFFINITY,
        "topologySpreadConstraints": _SPREAD,
        "runtimeClassName": _NAME,
        "nodeSelector": _LABELS,
        "tolerations": _TOLERATIONS,
        "priorityClassName": _NAME,
        "schedulerName": _NAME,
        "dnsPolicy": {"enum": ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]},
        "dnsConfig": {"type": "object"},
        "hostAliases": {"type": "array", "items": {"type": "object", "required": ["ip", "hostnames"]}},
        "initContainers": _named(_LABEL_NAME),
        "envFrom": {"type": "array", "items": {"type": "object"}},
        "resourceClaims": _named(_LABEL_NAME),
    },
}
_PODS = {"type": "integer", "minimum": 1, "maximum": 1000}
_OCTET = "(25[0-5]|2[0-4][0-9]|1?[0-9]{1,2})"
_IPV4 = rf"{_OCTET}(\.{_OCTET}){{3}}/([12]?[0-9]|3[0-2])"
_IPV6 = r"[0-9a-fA-F]*:[0-9a-fA-F:.]*/([1-9]?[0-9]|1[01][0-9]|12[0-8])"
_NETWORK = _form(
    f"^({_IPV4}|{_IPV6})$",
    "not a network: an address and the length of its prefix, as in 10.20.0.0/16 or fd00::/8; a single "
    "address "
    "is 10.20.0.7/32",
)
_CIDRS = {"type": "array", "items": {"type": "string", "pattern": _NETWORK}}
_PORT = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_HOST = r"([A-Za-z0-9._\-]+|\[[0-9a-fA-F:.]+\])"
_PORTS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 1, "maximum": 65535}}
#: of an object store
_ENDPOINT = {
    "type": "string",
    "pattern": _form(
        r"^$|^https?://[^\s@]+$",
        "not an address of an object store: http:// or https:// and no user, as in "
        "https://objects.example:9000",
    ),
}
_REGION = {
    "type": "string",
    "pattern": _form(
        "^$|^[A-Za-z0-9][A-Za-z0-9_.-]*$", "not a region: letters, digits, - _ and ., as in eu-central-1"
    ),
}
#: what the services' client takes in the query of a Redis URL; it would end at any other name
_REDIS_OPTION = (
    r"(socket_timeout|socket_connect_timeout)=[0-9]+(\.[0-9]+)?|(health_check_interval|max_connections)=[0-9]+|"
    r"(socket_keepalive|retry_on_timeout)=(true|false)|protocol=[23]"
)
_TLS_OPTION = rf"({_REDIS_OPTION}|ssl_check_hostname=(true|false)|ssl_cert_reqs=(none|optional|required))"
_REDIS_HOSTS = rf"{_HOST}(:{_PORT})?(,{_HOST}(:{_PORT})?)*(/[0-9]*)?"
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
#: a name in a path, which is not `..`
_FOLDER = r"([^./][^/]*|\.[^./][^/]*|\.\.[^/]+|\.)?"
#: a folder below another one
_BELOW = {
    "type": "string",
    "pattern": _form(
        rf"^{_FOLDER}(/{_FOLDER})*$",
        "not a folder of the volume or image: write it without .., as in qwen/7b",
    ),
}
_SHA256 = {
    "type": "string",
    "pattern": _form(
        "^$|^[0-9a-f]{64}$", "not a SHA-256: 64 digits of 0-9 and a-f, as `sha256sum FILE` prints them"
    ),
}
_ARCHIVE = {
    "type": "string",
    "pattern": _form(
        "^$|^https://", "not an https address: write one as in https://models.example/qwen.tar.gz"
    ),
}

#: a number of pods, or a share of them
_SOME_PODS = {
    "type": ["integer", "string"],
    "minimum": 0,
    "pattern": _form(
        "^([0-9]|[1-9][0-9]|100)%$",
        "not a share of the pods: 0% to 100%, as in 25%, or a number of them, as in 1",
    ),
}


def _strategy(*kinds: str, **more: dict[str, Any]) -> dict[str, Any]:
    """How pods are replaced, in one of some ways; `more` are numbers beside maxUnavailable."""
    numbers = {"maxUnavailable": _SOME_PODS, **more}
    rolling = {"type": "object", "additionalProperties": False, "properties": numbers}
    properties = {"type": {"enum": list(kinds)}, "rollingUpdate": rolling}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _text(pattern: str, words: str) -> dict[str, Any]:
    """A text of some form, and words for one of another."""
    return {"type": "string", "pattern": _form(pattern, words)}


_DIGEST = _form("^sha256:[0-9a-f]{64}$", "not a digest: sha256: and 64 digits of 0-9 and a-f")
#: a name of a volume with `recordings-` before it
_RECORDINGS = _form(
    "^[a-z0-9]([-a-z0-9]{0,48}[a-z0-9])?$",
    "not a valid name of a folder: lowercase letters, digits and -, with a letter or digit at both ends, "
    "50 at most, "
    "as in yard",
)
_TEXTS = {"type": "array", "items": {"type": "string"}}
#: of `Grant` of the gateway
_GRANTS = {
    "type": "array",
    "items": {
        "type": "object",
        "additionalProperties": False,
        "required": ["group", "role"],
        "properties": {
            "group": {"type": "string"},
            "role": {"enum": ["viewer", "operator", "administrator"]},
            "tenants": _TEXTS,
            "cameras": _TEXTS,
        },
    },
}
_OPTION = _form(
    r"^[a-z][a-z0-9.]*$",
    "not an option of librdkafka: lowercase letters, digits and ., as in socket.keepalive.enable",
)

_STORE_URL = _text(
    r"^$|^[a-z0-9]+://[^\s@]+$|^/",
    "not a store: s3://BUCKET/PREFIX without a user, or the path of a folder that all pods mount",
)

#: constraints by the end of a value's path
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "commonLabels": _LABELS,
    "serviceAccounts.annotations": _TEXT_MAP,
    "serviceAccounts.own": {"type": "object", "additionalProperties": _TEXT_MAP},
    "services.ipFamilyPolicy": {"enum": ["", "SingleStack", "PreferDualStack", "RequireDualStack"]},
    "services.ipFamilies": {"type": "array", "uniqueItems": True, "items": {"enum": ["IPv4", "IPv6"]}},
    "recall.updateStrategy": _strategy("RollingUpdate", "Recreate", maxSurge=_SOME_PODS),
    "gateway.updateStrategy": _strategy("RollingUpdate", "Recreate", maxSurge=_SOME_PODS),
    "controller.updateStrategy": _strategy("RollingUpdate", "Recreate", maxSurge=_SOME_PODS),
    "updateStrategy": _strategy("RollingUpdate", "OnDelete", partition={"type": "integer", "minimum": 0}),
    "pod": _POD,
    "extraObjects": {
        "type": "array",
        "items": {"type": "object", "required": ["apiVersion", "kind", "metadata"]},
    },
    "image.digests": {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {"type": "string", "pattern": _DIGEST} for name in _IMAGES},
    },
    "image.prefix": _text(
        "^[a-z0-9][a-z0-9.-]*(:[0-9]+)?[a-z0-9._/-]*[._/-]$",
        "not a beginning of an image's name: lowercase, with - / or another sign at its end, after which the "
        "part follows, as in registry.example:5000/team/lookout-",
    ),
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "image.pullSecrets": _NAMES,
    "image.tag": _text(
        r"^$|^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$",
        "not a tag: letters, digits, - _ and ., 128 at most, as in 0.3.0",
    ),
    "fullnameOverride": _text(
        r"^$|^[a-z]([-a-z0-9]{0,37}[a-z0-9])?$",
        "not a valid name for objects: lowercase letters, digits and -, a letter first, 39 at most, as in "
        "yard",
    ),
    "outside.host": _text(
        r"^$|^[A-Za-z0-9.\-]+$|^[0-9a-fA-F:]+$",
        "not an address of a node: its name or IP address alone, as in 192.0.2.10; the port is "
        "tryout.kafka.outside.port",
    ),
    "className": _NAME,
    "claim": _NAME,
    "memory.secret": _NAME,
    "stores.secret": _NAME,
    "memory.keep": _text(
        r"^$|^[0-9]+(\.[0-9]+)? ?([sS]|[mM]|[mM][iI][nN]|[hH]|[dD]|[kKmMgGtT]?[bB])$",
        "neither a time nor a size: a number and s, min, h or d, or B, kB, MB, GB or TB, as in 2h or 500MB",
    ),
    "memory.url": _STORE_URL,
    "keep.url": _STORE_URL,
    "keep.limit": {**_QUANTITY, "minLength": 1},
    "keep.secret": _NAME,
    "keep.endpoint": _ENDPOINT,
    "keep.region": _REGION,
    "memory.endpoint": _ENDPOINT,
    "stores.endpoint": _ENDPOINT,
    "memory.region": _REGION,
    "stores.region": _REGION,
    "canary.share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "canary.model": {"allOf": [{"$ref": "#/properties/model"}]},
    "canary.pruneEncode": {"allOf": [{"$ref": "#/properties/pruneEncode"}]},
    "canary.prefill": {"allOf": [{"$ref": "#/properties/prefill"}]},
    "recall.callers": _LABELS,
    "gateway.callerNamespaces": _LABELS,
    "gateway.publicUrl": _text(
        r"^$|^https?://[^/\s@?#]+$",
        "not an address of the API: scheme, host and port alone, as in https://lookout.example.org",
    ),
    "database.secret": _NAME,
    "urlKey": _SECRET_KEY,
    "database.port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "gateway.tls.secret": _NAME,
    "notify.secret": _NAME,
    "links.secret": _NAME,
    "links.key": _SECRET_KEY,
    "push.secret": _NAME,
    "push.key": _SECRET_KEY,
    "notify.ports": _PORTS,
    "notify.networks": _CIDRS,
    "oidc.issuer": _text(
        r"^$|^https://[^\s@?#]+$", "not an issuer: an https URL, as in https://login.example.org/realms/main"
    ),
    "oidc.secret": _NAME,
    "oidc.secretKey": _SECRET_KEY,
    "oidc.grants": _GRANTS,
    "ingress.className": _NAME,
    "ingress.host": _text(
        r"^$|^[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?$",
        "not a host: lowercase letters, digits, - and ., as in lookout.example.org",
    ),
    "ingress.tlsSecret": _NAME,
    "ingress.annotations": _TEXT_MAP,
    "decodeReplicas": {"type": "integer", "minimum": 0},
    "recordings.claims": {
        "type": "object",
        "additionalProperties": False,
        "patternProperties": {_RECORDINGS: {**_NAME, "minLength": 1}},
    },
    "jobResources": _RESOURCES,
    "caKey": _SECRET_KEY,
    "usernameKey": _SECRET_KEY,
    "passwordKey": _SECRET_KEY,
    "accessKey": _SECRET_KEY,
    "secretKey": _SECRET_KEY,
    "caSecret": _NAME,
    "tokenCaSecret": _NAME,
    "clientSecret": _NAME,
    "passwordSecret": _NAME,
    "addressSecret": _NAME,
    "sasl.secret": _NAME,
    "sasl.secrets": _OWN_SECRETS,
    "tls.clientSecrets": _OWN_SECRETS,
    "grpc.secret": _NAME,
    "priorityClassName": _NAME,
    "busyShare": {"type": "number", "minimum": 0.1, "maximum": 0.95},
    "prometheusAddress": _text(
        r"^$|^https?://[^\s]+$",
        "not an address of Prometheus: write one as in http://prometheus.monitoring:9090",
    ),
    "prometheusAuthentication": _NAME,
    "storage.size": _QUANTITY,
    "storage.limit": {**_QUANTITY, "minLength": 1},
    "spool": {**_QUANTITY, "minLength": 1},
    "url.size": {**_QUANTITY, "minLength": 1},
    "outside.port": {"type": "integer", "minimum": 30000, "maximum": 32767},
    "kafka.bootstrap": _text(
        f"^$|^{_HOST}:{_PORT}(,{_HOST}:{_PORT})*$",
        "not a list of servers: HOST:PORT, several with commas and no spaces, as in "
        "kafka-0:9092,kafka-1:9092; "
        "a port is 1 to 65535, and nothing stands before a host",
    ),
    "sasl.mechanism": {"enum": ["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]},
    "sasl.tokenUrl": _text(
        "^$|^https?://[^@ ]+$",
        "not an address of a token endpoint: write one as in https://idp.example/oauth2/token",
    ),
    "kafka.prefix": _text(
        r"^$|^[a-z0-9][a-z0-9.-]{0,38}[.-]$",
        "not a prefix: lowercase letters, digits, - and ., 40 at most, with . or - at the end, as in site-a.",
    ),
    "kafka.options": {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: {"enum": list(_CODECS)} for name in ("compression.type", "compression.codec")},
        "patternProperties": {_OPTION: {"type": ["string", "number", "boolean"]}},
    },
    "redis.url": _text(
        rf"^$|^redis://{_REDIS_HOSTS}(\?({_REDIS_OPTION})(&({_REDIS_OPTION}))*)?$|"
        rf"^rediss://{_REDIS_HOSTS}(\?{_TLS_OPTION}(&{_TLS_OPTION})*)?$",
        "not an address of Redis: redis://HOST:PORT/NUMBER, or rediss:// for TLS, as in "
        "rediss://redis:6379/0; "
        "Sentinels are redis://HOST:PORT,HOST:PORT/NUMBER. User and password have values of their own "
        "(redis.username, redis.passwordSecret). Behind a ? there may be socket_timeout, "
        "socket_connect_timeout, health_check_interval, max_connections, socket_keepalive, retry_on_timeout, "
        "protocol, and with rediss:// ssl_cert_reqs and ssl_check_hostname",
    ),
    "redis.sentinel": _text(
        "^[A-Za-z0-9._-]*$", "not a valid name of a primary: letters, digits, - _ and ., as in directory"
    ),
    "tenants.intervalS": {"type": "number", "minimum": 1, "maximum": 86400},
    "grpc.source": {"enum": ["auto", "cert-manager", "job"]},
    "grpc.days": {"type": "number", "exclusiveMinimum": 0, "maximum": 3650},
    "topics.partitions": {"type": "integer", "minimum": 1, "maximum": 10000},
    "topics.replication": {"type": "integer", "minimum": 0, "maximum": 15},
    "model.source": {"enum": ["bundled", "volume", "image", "url"]},
    "model.digest": _text(
        "^$|^[0-9a-f]{16}$",
        "not a digest of a checkpoint: 16 digits of 0-9 and a-f, as `lookout model check DIR` prints them",
    ),
    "url.address": _ARCHIVE,
    "url.sha256": _SHA256,
    "vision.address": _ARCHIVE,
    "vision.sha256": _SHA256,
    "resources": _RESOURCES,
    "nodeSelector": _LABELS,
    "tolerations": _TOLERATIONS,
    "replicas": _PODS,
    "minReplicas": _PODS,
    "maxReplicas": _PODS,
    "lagSeconds": {"type": "number", "exclusiveMinimum": 0},
    "gpus": {"type": "integer", "minimum": 0, "maximum": 64},
    "opinion.image": {"enum": ["recordings", "prefill-gpu"]},
    "prefill.image": {"enum": ["prefill", "prefill-gpu"]},
    "decode.image": {"enum": ["decode", "decode-gpu"]},
    "pruneEncode.image": {"enum": ["prune-encode", "prune-encode-gpu"]},
    "cameraNetworks": _CIDRS,
    "dependencyNetworks": _CIDRS,
    "dependencyPorts": _PORTS,
    "apiNetworks": _CIDRS,
    "apiPorts": _PORTS,
    "dnsLabels": {**_LABELS, "minProperties": 1},
    "dnsNetworks": _CIDRS,
    "dnsPorts": _PORTS,
    "metricsNamespaces": _LABELS,
    "meshNamespaces": _LABELS,
    "identityNetworks": _CIDRS,
    "credentialSecrets": _NAMES,
    "monitoring.labels": _LABELS,
    "monitoring.intervalS": {"type": "integer", "minimum": 1, "maximum": 3600},
    "heapMb": {"type": "integer", "minimum": 256, "maximum": 65536},
    "kafka.rackLabel": _text(
        r"^$|^([a-z0-9.-]+/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$",
        "not a valid name of a label: write one as in topology.kubernetes.io/zone",
    ),
    "gpuResource": _text(
        r"^[a-z0-9.-]+/[A-Za-z0-9][A-Za-z0-9._-]*$",
        "not a valid name of a resource: write one as in nvidia.com/gpu",
    ),
    "gpuTaint": _text(
        r"^([a-z0-9.-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*$",
        "not a valid key of a taint: write one as in nvidia.com/gpu",
    ),
    "volume.path": _BELOW,
    "image.path": _BELOW,
    "image.reference": _text(
        r"^$|^[a-z0-9][A-Za-z0-9._/:@-]*$",
        "not a reference of an image: write one as in registry.example/models/qwen:1",
    ),
    "runAsUser": {"type": "integer", "minimum": 0, "maximum": 2147483647},
    "startupSeconds": {"type": "integer", "minimum": 30, "maximum": 86400},
    "terminationGracePeriodSeconds": {"type": "integer", "minimum": 5, "maximum": 3600},
}


@dataclass(frozen=True)
class Value:
    """One value of the chart: its path, the comment above it and its default."""

    path: str
    comment: str
    default: Any


def values() -> list[Value]:
    """Return every value that has no values below it, in the order of values.yaml."""
    text = (CHART / "values.yaml").read_text()
    return list(_leaves(yaml.compose(text, yaml.CSafeLoader), text.splitlines(), ""))


def _leaves(node: yaml.MappingNode, lines: list[str], prefix: str) -> Iterator[Value]:
    for key, child in node.value:
        path = f"{prefix}{key.value}"
        comment = _comment(lines, key.start_mark.line)
        default = SafeConstructor().construct_document(child)
        if isinstance(child, yaml.MappingNode) and child.value and not comment and child.start_mark.line:
            yield from _leaves(child, lines, f"{path}.")
        else:
            yield Value(path, comment, default)


def _comment(lines: list[str], line: int) -> str:
    found: list[str] = []
    for text in reversed(lines[:line]):
        if not text.strip().startswith("#"):
            break
        found.insert(0, text.strip().removeprefix("#").strip())
    return " ".join(found)


def topics() -> list[dict[str, Any]]:
    """Return the topic table as the chart shows it."""
    return [
        {
            "name": topic.name,
            "value": topic.value,
            "pipeline": topic.pipeline,
            "config": topic.config(),
        }
        for topic in all_topics()
    ]


def schema() -> dict[str, Any]:
    """Return the JSON schema of the values."""
    root = _object()
    for value in values():
        _place(root, value.path.split("."), _value_schema(value))
    root["$schema"] = "http://json-schema.org/draft-07/schema#"
    root["title"] = "Values of the Lookout chart"
    root["properties"]["global"] = {"type": "object"}
    # Where another chart brings this one, its `condition: lookout.enabled` is a value here.
    root["properties"]["enabled"] = {"type": "boolean"}
    # Of 0.2; templates/refusals.yaml says what it is now.
    root["properties"]["podAnnotations"] = {"type": "object"}
    root["definitions"] = {}
    for kind in dict.fromkeys(SETTINGS.values()):
        root["definitions"].update(_settings_schema(kind).pop("$defs", {}))
    return root


#: paths by kind, form and words
Forms = dict[tuple[str, str | float, str], list[list[str]]]


def forms(schema: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Take what helm would not say in words out of a schema.

    Args:
        schema: Of the values.

    Returns:
        The schema without regular expressions and without bounds that a number must be above; and these, each
        once, with its words and the paths of values (`*`: every field or item; `name`: the names of fields).
    """
    found: Forms = {}
    _take_missing(found)
    plain = _take_forms(schema, [], "", found)
    listed = [
        {"kind": kind, "form": form, "words": words, "paths": paths}
        for (kind, form, words), paths in found.items()
    ]
    return plain, listed


def _take_missing(found: Forms) -> None:
    """Put into `found` which values there must be, groups before what is in them.

    Helm takes a default away where a value is null; an upgrade with --reuse-values has those of old.
    """
    words = "null or missing: leave it out for the chart's default{} (an upgrade: --reset-then-reuse-values)"
    paths = [value.path.split(".") for value in values()]
    groups = dict.fromkeys(tuple(path[:length]) for path in paths for length in range(1, len(path)))
    for group in sorted(groups, key=len):
        found.setdefault(("there", "", words.format("s")), []).append(list(group))
    for value, path in zip(values(), paths, strict=True):
        default = json.dumps(value.default, ensure_ascii=False)
        found.setdefault(("there", "", words.format(f", {default}")), []).append(path)


def _take_forms(
    schema: dict[str, Any],
    path: list[str],
    about: str,
    found: Forms,
) -> dict[str, Any]:
    """A schema without forms; these go into `found`. `about`: what the value is for."""
    about = schema.get("description", about)

    def take(kind: str, form: str | float, words: str) -> None:
        found.setdefault((kind, form, words), []).append(path)

    def inside(part: dict[str, Any], *more: str) -> dict[str, Any]:
        return _take_forms(part, [*path, *more], about, found)

    plain = dict(schema)
    if "pattern" in schema:
        # Forms of settings are their classes'; what a setting is for says what to write.
        take(
            "text",
            pattern := plain.pop("pattern"),
            WORDS.get(pattern) or f"rejected; expected: {about}",
        )
    if "exclusiveMinimum" in schema:
        take("above", above := plain.pop("exclusiveMinimum"), f"too little: write a number above {above:g}")
    if "properties" in schema:
        plain["properties"] = {name: inside(part, name) for name, part in schema["properties"].items()}
    if "patternProperties" in schema:
        [(pattern, part)] = plain.pop("patternProperties").items()
        take("name", pattern, WORDS[pattern])
        plain["additionalProperties"] = inside(part, "*")
    elif isinstance(schema.get("additionalProperties"), dict):
        plain["additionalProperties"] = inside(schema["additionalProperties"], "*")
    if "items" in schema:
        plain["items"] = inside(schema["items"], "*")
    if "anyOf" in schema:
        plain["anyOf"] = [inside(part) for part in schema["anyOf"]]
    return plain


def _object() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _place(root: dict[str, Any], path: list[str], leaf: dict[str, Any]) -> None:
    for part in path[:-1]:
        root = root["properties"].setdefault(part, _object())
    root["properties"][path[-1]] = leaf


def _value_schema(value: Value) -> dict[str, Any]:
    found: dict[str, Any]
    if value.path in SETTINGS:
        found = _settings_schema(SETTINGS[value.path])
        found.pop("$defs", None)
        if quotas := found["properties"].get("job_quotas"):
            quotas.update(_by_tenant(quotas["additionalProperties"]))
    elif value.path == "tenants.quotas":
        found = _tenants()
    elif value.path in {"topics.retentionHours", "topics.tieredLocalHours"}:
        names = {topic.name: {"type": "number", "exclusiveMinimum": 0} for topic in _kept()}
        found = {"type": "object", "additionalProperties": False, "properties": names}
    else:
        found = dict(_constraint(value.path) or _by_default(value.default))
    return {"description": value.comment, **found}


def _kept() -> list[Any]:
    return [topic for topic in all_topics() if not topic.compacted]


def _constraint(path: str) -> dict[str, Any] | None:
    for end, found in CONSTRAINTS.items():
        if path == end or path.endswith(f".{end}"):
            return found
    return None


def _by_default(default: Any) -> dict[str, Any]:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return {"type": kinds[type(default)]}


def settings_of(kind: type[ServiceSettings]) -> dict[str, dict[str, Any]]:
    """Return the settings that a value may give a service: JSON schema by name, nested ones with ``__``."""
    return dict(_settings_schema(kind)["properties"])


def _settings_schema(kind: type[ServiceSettings]) -> dict[str, Any]:
    whole = kind.model_json_schema(ref_template="#/definitions/{model}")
    definitions = whole.get("$defs", {})
    properties: dict[str, Any] = {}
    for name, each in whole["properties"].items():
        if name in FIXED or name.startswith(SECURITY):
            continue
        nested = definitions.get(each.get("$ref", "").rpartition("/")[2], {})
        if nested.get("type") == "object":
            for inner, facts in nested["properties"].items():
                properties[f"{name}__{inner}"] = _plain(facts)
        else:
            properties[name] = _plain(each)
    for facts in definitions.values():
        for name, inner in facts.get("properties", {}).items():
            facts["properties"][name] = _plain(inner)
    parts = {
        name: _plain(facts) for name, facts in definitions.items() if f'/{name}"' in json.dumps(properties)
    }
    return {"type": "object", "additionalProperties": False, "properties": properties, "$defs": parts}


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A setting's schema without the titles and defaults of its class; lists are given as text."""
    found = {name: each for name, each in facts.items() if name not in ("title", "default", "format")}
    if found.get("type") == "array":
        listed = {"type": "string", "description": found.get("description", "")}
        if entry := found.get("items", {}).get("pattern"):
            listed["pattern"] = rf"^\s*({entry}(\s*,\s*{entry})*)?\s*$"
        return listed
    if "anyOf" in found:
        # A setting that may be unset is left out. Null would reach the pod as a text.
        [kind] = [kind for kind in found.pop("anyOf") if kind.get("type") != "null"]
        found |= {name: each for name, each in kind.items() if name != "format"}
    return found


def _tenants() -> dict[str, Any]:
    """Quotas by the name of a tenant, or by `*`."""
    quota = TenantQuota.model_json_schema()
    quota["properties"] = {name: _plain(facts) for name, facts in quota["properties"].items()}
    numbers = {name: quota[name] for name in ("type", "additionalProperties", "properties")}
    return _by_tenant(numbers)


def _by_tenant(entry: Mapping[str, Any]) -> dict[str, Any]:
    """An object with an entry for each tenant."""
    tenant = rf"[a-z0-9]([-a-z0-9_.]{{0,{limits.TENANT_CHARS - 2}}}[a-z0-9])?"
    name = _form(
        rf"^(\*|{tenant})$",
        f"not a valid name of a tenant: lowercase letters, digits, - _ and ., with a letter or digit at "
        f"both ends, "
        f"{limits.TENANT_CHARS} at most, as in acme, or * for tenants that are not named",
    )
    names = {name: dict(entry)}
    return {"type": "object", "additionalProperties": False, "patternProperties": names}


def readme() -> str:
    """Return the chart's README."""
    lines = [
        "# The Lookout chart",
        "",
        "Made from values.yaml and the services' settings by `make chart`; docs/kubernetes.md is the guide.",
        "",
        "```sh",
        "helm install lookout charts/lookout --namespace cameras --create-namespace",
        "```",
        "",
        "## Values",
        "",
        "| value | meaning | default |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{each.path}` | {each.comment} | {_shown(each.default)} |" for each in values()]
    lines += [
        "",
        "## Topics",
        "",
        "| topic | value | partitions | settings |",
        "| --- | --- | --- | --- |",
    ]
    for topic in topics():
        config = ", ".join(f"{name}={each}" for name, each in topic["config"].items())
        count = "`topics.partitions`" if topic["pipeline"] else "1"
        lines.append(f"| `{topic['name']}` | {topic['value']} | {count} | {config} |")
    seen: set[str] = set()
    for path, kind in SETTINGS.items():
        rows = {name: facts for name, facts in settings_of(kind).items() if name not in seen}
        if not rows:
            continue
        seen |= set(rows) if path == "settings" else set()
        lines += ["", f"## Settings in `{path}`", "", "| setting | meaning |", "| --- | --- |"]
        lines += [f"| `{name}` | {facts.get('description', '')} |" for name, facts in rows.items()]
    return "\n".join([*lines, ""])


def _shown(default: Any) -> str:
    return f"`{json.dumps(default)}`" if default not in ("", [], {}) else ""


@dataclass(frozen=True)
class Version:
    """A version of the resource definitions; all but the last one are deprecated.

    Attributes:
        name: As in ``apiVersion: lookout.dev/NAME``.
        stored: Whether the API server stores resources in this version: exactly one is stored.
        served: Whether clients may read and write it.
    """

    name: str
    stored: bool
    served: bool = True


#: docs/releases.md says in which order a new one is served, then stored, and the old one goes
VERSIONS = (Version("v1", stored=True),)


def crds() -> dict[Path, str]:
    """Return the resource definitions with the bounds of `lookout.wire.limits`, in each version."""
    paths = sorted((CHART / "crds").glob("*.yaml"))
    return {path: versioned(_bounded(path.read_text())) for path in paths}


def versioned(text: str, versions: Sequence[Version] = VERSIONS) -> str:
    """Return a resource definition whose first version is repeated under the names of all versions.

    All have the same schema: where one had fields of its own, the API server would drop them as soon as a
    client, such as a controller of the release before, writes the resource in another version.
    """
    head, heading, blocks = text.partition("  versions:\n")
    first = re.split(r"(?m)^(?=    - name: )", blocks)[1]
    schema = first[first.index("      subresources:") :]
    return head + heading + "".join(_flags(each, versions[-1]) + schema for each in versions)


def _flags(version: Version, newest: Version) -> str:
    lines = [
        f"    - name: {version.name}",
        f"      served: {json.dumps(version.served)}",
        f"      storage: {json.dumps(version.stored)}",
    ]
    if version != newest:
        warning = f"lookout.dev/{version.name} is deprecated: write apiVersion: lookout.dev/{newest.name}"
        lines += ["      deprecated: true", f"      deprecationWarning: {json.dumps(warning)}"]
    return "\n".join([*lines, ""])


def crd_chart() -> dict[Path, str]:
    """Return the templates of the chart that holds the resource definitions alone.

    Helm installs what is in ``crds`` once and never touches it again. Templates are upgraded; the annotation
    keeps them, and with them every resource, when the release is uninstalled.
    """
    mark = "metadata:\n"
    kept = f"{mark}  annotations: {{helm.sh/resource-policy: keep}}\n"
    templates = CHART.parent / "lookout-crds" / "templates"
    return {templates / path.name: text.replace(mark, kept, 1) for path, text in crds().items()}


def chart_files() -> dict[Path, str]:
    """Return the Chart.yaml of both charts."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    files = {}
    for folder in (CHART, CHART.parent / "lookout-crds"):
        path = folder / "Chart.yaml"
        text = re.sub(r"(?m)^version: .*$", f"version: {version}", path.read_text())
        files[path] = re.sub(r"(?m)^appVersion: .*$", f'appVersion: "{version}"', text)
    files[CHART / "Chart.yaml"] = files[CHART / "Chart.yaml"].partition(_DERIVED)[0] + _annotations(version)
    return files


def _annotations(version: str) -> str:
    """What Artifact Hub shows: images (built by whoever installs, so that nobody scans them), and changes."""
    prefix = next(value.default for value in values() if value.path == "image.prefix")
    lines = [_DERIVED.rstrip(), "  artifacthub.io/images: |"]
    for name in _IMAGES:
        lines += [f"    - name: {name}", f"      image: {prefix}{name}:{version}", "      whitelisted: true"]
    lines.append("  artifacthub.io/changes: |")
    for kind, text in changes((ROOT / "CHANGELOG.md").read_text()):
        lines += [f"    - kind: {kind}", f"      description: {json.dumps(text, ensure_ascii=False)}"]
    return "\n".join([*lines, ""])


def changes(changelog: str) -> list[tuple[str, str]]:
    """Return what the newest version of a changelog changes of the chart: kind, as Artifact Hub names it, and
    text."""
    newest = changelog.split("\n## ")[1]
    entries = []
    for section in newest.split("\n### ")[1:]:
        heading, _, body = section.partition("\n")
        for entry in re.split(r"(?m)^- ", body)[1:]:
            text = " ".join(entry.split())
            if re.search(r"\bcharts?\b", text, re.IGNORECASE):
                entries.append((heading.strip().lower(), text))
    return entries


def _bounded(text: str) -> str:
    return "\n".join(_bounded_line(line) for line in text.split("\n"))


def _bounded_line(line: str) -> str:
    match = _BOUND.search(line)
    if match is None:
        return line
    bound, name = match.groups()
    return re.sub(rf"{bound}: [0-9.]+", f"{bound}: {_BOUNDS[name]}", line, count=1)


def derived() -> dict[Path, str]:
    """Return the text of every derived file."""
    plain, listed = forms(schema())
    return {
        **crds(),
        **crd_chart(),
        **chart_files(),
        CHART / "values.schema.json": json.dumps(plain, indent=1, ensure_ascii=False) + "\n",
        CHART / "files" / "forms.json": json.dumps(listed, ensure_ascii=False) + "\n",
        CHART / "files" / "topics.json": json.dumps(topics(), indent=1) + "\n",
        CHART / "README.md": readme(),
    }


def main() -> int:
    """Write the files, or say which are stale."""
    stale = [path for path, text in derived().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path.relative_to(CHART.parent)} is stale: run make chart")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(derived()[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
