"""Enforces NetworkPolicies with nft in the nodes' network namespaces: what a network plugin does, for tests.

It knows pod and namespace selectors, address blocks, numeric and named ports, both directions.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.cluster.cluster import PODS, Cluster
from tests.cluster.tools import ToolError

_TABLE = "lookout_policies"
_NOBODY = "255.255.255.255"
_PAUSE_S = 2.0
Rules = dict[str, list[str]]


class Enforcer:
    """Keeps the nodes' rules in step with pods and policies, on a thread of its own.

    A new pod gets nothing out until it is served, a few seconds late, as with a network plugin.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._rules = ""
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> int:
        """Enforce from now on; returns how many rules there are."""
        self._update()
        self._thread.start()
        return self._rules.count("accept")

    def stop(self) -> None:
        """Enforce nothing any more."""
        self._stopped.set()
        self._thread.join(30.0)
        _load(self._cluster, f"table ip {_TABLE} {{}}\ndelete table ip {_TABLE}\n")

    def reset(self) -> None:
        """Count dropped packets from here."""
        with self._lock:
            self._rules = ruleset(self._cluster)
            _load(self._cluster, self._rules)

    def dropped(self) -> dict[str, int]:
        """Return dropped packets by direction and pod address, since the rules last changed."""
        found: dict[str, int] = {}
        for node in range(1, self._cluster.nodes + 1):
            listed = _nft(node, "list", "table", "ip", _TABLE)
            for chain, body in re.findall(r"chain ((?:egress|ingress)-[\d-]+) \{(.*?)\n\t\}", listed, re.S):
                counts = re.findall(r"counter packets (\d+) bytes \d+ drop", body)
                found[chain] = found.get(chain, 0) + sum(map(int, counts))
        return {chain: count for chain, count in found.items() if count}

    def _follow(self) -> None:
        while not self._stopped.wait(_PAUSE_S):
            with contextlib.suppress(ToolError):
                self._update()

    def _update(self) -> None:
        with self._lock:
            wanted = ruleset(self._cluster)
            if wanted != self._rules:
                _load(self._cluster, wanted)
                self._rules = wanted


def ruleset(cluster: Cluster) -> str:
    """Return nft's rules for every policy and pod there is."""
    pods = [each for each in cluster.get("pods", "-A")["items"] if _address(each)]
    spaces = {
        each["metadata"]["name"]: each["metadata"].get("labels", {})
        for each in cluster.get("namespaces")["items"]
    }
    isolated: dict[str, Rules] = {"ingress": {}, "egress": {}}
    for policy in cluster.get("networkpolicies", "-A")["items"]:
        for direction, rules in isolated.items():
            if direction.capitalize() in policy["spec"].get("policyTypes", ["Ingress"]):
                _add(rules, policy, direction, pods, spaces)
    return _text(isolated, [_address(each) for each in pods])


def _add(
    rules: Rules,
    policy: Mapping[str, Any],
    direction: str,
    pods: Sequence[Mapping[str, Any]],
    spaces: Mapping[str, Mapping[str, str]],
) -> None:
    space, spec = policy["metadata"]["namespace"], policy["spec"]
    key, far = ("from", "saddr") if direction == "ingress" else ("to", "daddr")
    for pod in pods:
        labels = pod["metadata"].get("labels", {})
        if pod["metadata"]["namespace"] != space or not _selects(spec.get("podSelector", {}), labels):
            continue
        allowed = rules.setdefault(_address(pod), [])
        for rule in spec.get(direction) or []:
            targets = [pod] if direction == "ingress" else pods
            for peer in rule.get(key) or [None]:
                where = _where(peer, far, space, pods, spaces)
                allowed += [f"{where}{port} accept" for port in _ports(rule, targets)]


def _where(
    peer: Mapping[str, Any] | None,
    far: str,
    space: str,
    pods: Sequence[Mapping[str, Any]],
    spaces: Mapping[str, Mapping[str, str]],
) -> str:
    if peer is None:
        return ""
    if block := peer.get("ipBlock"):
        without = block.get("except", [])
        more = f"ip {far} != {{ {', '.join(without)} }} " if without else ""
        return f"ip {far} {block['cidr']} {more}"
    found = []
    for pod in pods:
        home = pod["metadata"]["namespace"]
        if "namespaceSelector" in peer:
            if not _selects(peer["namespaceSelector"], spaces[home]):
                continue
        elif home != space:
            continue
        if _selects(peer.get("podSelector", {}), pod["metadata"].get("labels", {})):
            found.append(_address(pod))
    return f"ip {far} {{ {', '.join(sorted(found) or [_NOBODY])} }} "


def _ports(rule: Mapping[str, Any], targets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not rule.get("ports"):
        yield ""
    for each in rule.get("ports") or []:
        protocol, port = each.get("protocol", "TCP").lower(), each.get("port")
        if isinstance(port, str):
            named = [
                spec["containerPort"]
                for pod in targets
                for container in pod["spec"]["containers"]
                for spec in container.get("ports", [])
                if spec.get("name") == port
            ]
            port = named[0] if named else 0
        last = f"-{each['endPort']}" if "endPort" in each else ""
        yield f"{protocol} dport {port}{last}" if port is not None else f"meta l4proto {protocol}"


def _selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for each in selector.get("matchExpressions") or []:
        value, operator = labels.get(each["key"]), each["operator"]
        right = {
            "In": value in each.get("values", ()),
            "NotIn": value not in each.get("values", ()),
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not right[operator]:
            return False
    return True


def _address(pod: Mapping[str, Any]) -> str:
    running = pod["status"].get("phase") in ("Running", "Pending") and not pod["spec"].get("hostNetwork")
    return str(pod["status"].get("podIP", "")) if running else ""


def _text(isolated: Mapping[str, Rules], known: Sequence[str]) -> str:
    stranger = f"  ip saddr {PODS} ip saddr != {{ {', '.join(sorted(known) or [_NOBODY])} }} counter drop"
    lines = [f"table ip {_TABLE} {{}}", f"delete table ip {_TABLE}", f"table ip {_TABLE} {{"]
    for direction, rules in isolated.items():
        for address, allowed in rules.items():
            lines += [f" chain {direction}-{address.replace('.', '-')} {{"]
            lines += [f"  {each}" for each in dict.fromkeys(allowed)]
            lines += ["  counter drop", " }"]
    # An accepted packet leaves its base chain: each direction has one of its own. What a pod sends to its own
    # node (where the API server is, here) is not forwarded.
    for direction, hook, priority in (
        ("egress", "forward", 10),
        ("ingress", "forward", 11),
        ("egress", "input", 10),
    ):
        near = "saddr" if direction == "egress" else "daddr"
        lines += [f" chain {hook}-{direction} {{ type filter hook {hook} priority {priority}; policy accept;"]
        lines += ["  ct state established,related accept"]
        lines += [
            f"  ip {near} {address} jump {direction}-{address.replace('.', '-')}"
            for address in isolated[direction]
        ]
        lines += [stranger] if direction == "egress" else []
        lines += [" }"]
    return "\n".join([*lines, "}", ""])


def _load(cluster: Cluster, ruleset: str) -> None:
    for node in range(1, cluster.nodes + 1):
        _nft(node, "-f", "-", stdin=ruleset)


def _nft(node: int, *arguments: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["ip", "netns", "exec", f"lookout-node{node}", "nft", *arguments],
        input=stdin,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ToolError(f"nft {' '.join(arguments)}: {done.stderr[-1500:]}")
    return done.stdout
