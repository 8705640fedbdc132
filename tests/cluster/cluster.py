"""A real Kubernetes on one machine: control plane, kubelets, containerd, CoreDNS; nodes are namespaces.

``python -m tests.cluster.cluster up [NODES [GATE ...]] | down | run COMMAND...``. Needs root. Everything lies
below one folder of the cache; the machine's own network, mounts and settings stay as they are.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any

import yaml

from tests.cluster import groups, workshop
from tests.cluster.node_init import Plan
from tests.cluster.pki import Authority, Subject
from tests.cluster.tools import BIN, CACHE, ToolError, check_host, say

STATE = CACHE / "state"
API = "10.90.0.1"
OUTSIDE = "lookout-outside"
OUTSIDE_ADDRESS = "10.90.0.100"
_KUBE = str(BIN / "kube")
_SERVICES = "10.96.0.0/16"
_DNS = "10.96.0.10"
PODS = "10.244.0.0/16"
_READY_S = 180.0
#: how often the autoscaler looks; sixty times as often as elsewhere, so that hours of load are minutes
AUTOSCALER_PERIOD = "250ms"


class Cluster:
    """One cluster of ``nodes`` nodes; `up` and `down` may be called in different processes.

    Args:
        nodes: How many.
        gates: Features that Kubernetes does not turn on by itself.
    """

    #: in front of commands that run outside, beside the nodes
    prefix: tuple[str, ...] = ("ip", "netns", "exec", OUTSIDE)

    def __init__(self, nodes: int = 1, gates: Sequence[str] = ()) -> None:
        self.nodes = nodes
        self.gates = gates

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; it works inside `outside` only."""
        return STATE / "pki" / "admin.kubeconfig"

    @property
    def address(self) -> str:
        """Where ports of services are reached from outside."""
        return API

    def left_out(self) -> Mapping[str, str]:
        """Return the steps that cannot run here, and why."""
        return {}

    def namespaces(self) -> list[str]:
        """Return the namespaces that steps made and did not remove: here, all but Kubernetes' own."""
        names = self.kubectl("get", "namespaces", "-o", "jsonpath={.items[*].metadata.name}").split()
        return [name for name in names if name != "default" and not name.startswith("kube-")]

    def image_layers(self, name: str) -> str:
        """Return what tells an image under test from its predecessors."""
        return workshop.image_layers(name)

    def program(self, name: str) -> list[str]:
        """Return the words that begin a command line of kubectl or helm."""
        return [_KUBE, name] if name == "kubectl" else [str(BIN / name)]

    def join(self) -> bool:
        """Use the cluster that runs, if one of at least so many nodes does and all of them are ready."""
        ready = STATE / "ready"
        count = int(ready.read_text()) if ready.exists() else 0
        if count < self.nodes or not _alive(STATE / "control" / "pid") or self._ready_nodes() != count:
            return False
        self.nodes = count
        return True

    def up(self) -> None:
        """Start everything and wait until every node is ready.

        Raises:
            ToolError: This machine cannot run a cluster, or a part did not come up.
        """
        check_host()
        self.down()
        started = time.monotonic()
        _certificates(self.nodes)
        _network(self.nodes)
        _control_plane(self.gates)
        _wait("the control plane", (STATE / "control" / "started").exists)
        for number in range(1, self.nodes + 1):
            _node(number)
        self.apply(_coredns())
        folder = workshop.export((workshop.PAUSE_IMAGE, workshop.COREDNS_IMAGE), "system")
        for number in range(1, self.nodes + 1):
            _wait(f"containerd of node {number}", (STATE / f"node{number}" / "containerd.sock").exists)
        self.load(folder)
        _wait("the nodes", lambda: self._ready_nodes() == self.nodes)
        self.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=120s")
        (STATE / "ready").write_text(str(self.nodes))
        say(f"cluster of {self.nodes} node(s) is ready after {time.monotonic() - started:.0f} s")

    def down(self) -> None:
        """End every process, remove namespaces, control groups and files."""
        for plan in sorted(STATE.glob("*/pid"), reverse=True):
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.killpg(int(plan.read_text()), signal.SIGKILL)
        for path in STATE.glob("node*/cgroups"):
            for line in path.read_text().splitlines():
                _remove_cgroup(Path(line))
        for name in _namespaces():
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        if STATE.exists():
            time.sleep(0.5)
            _throw_away(STATE)

    def kill_node(self, number: int) -> None:
        """End a node's kubelet, runtime and pods at once, as a loss of power does."""
        os.killpg(int((STATE / f"node{number}" / "pid").read_text()), signal.SIGKILL)

    def forget_node(self) -> None:
        """Count one node less: steps that need it have the cluster built again."""
        self.nodes -= 1
        (STATE / "ready").write_text(str(self.nodes))

    def load(self, folder: Path, nodes: Sequence[int] | None = None) -> None:
        """Import every image of an OCI folder into the nodes."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(_import, folder), nodes or range(1, self.nodes + 1)))

    def load_archive(self, archive: Path) -> str:
        """Import an archive of images into every node, as `ctr` does by hand; what it says.

        Raises:
            ToolError: It failed.
        """
        said = ""
        for number in range(1, self.nodes + 1):
            with archive.open("rb") as file:
                said = _import_from(file, number)
        return said

    def load_changed(self, images: Sequence[str]) -> None:
        """Import the images that the nodes do not have yet, by name and digest."""
        record = STATE / "loaded.json"
        loaded: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
        wanted = {image: workshop.image_id(image) for image in images}
        changed = [image for image, identity in wanted.items() if loaded.get(image) != identity]
        if changed:
            self.load(workshop.export(changed, "changed" if loaded else "fleet"))
            record.write_text(json.dumps({**loaded, **wanted}))

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl as administrator and return what it prints."""
        return self.outside(*self.program("kubectl"), *arguments, stdin=stdin, check=check)

    def helm(self, *arguments: str, check: bool = True) -> str:
        """Run helm as administrator and return what it prints."""
        return self.outside(*self.program("helm"), *arguments, check=check)

    def get(self, *arguments: str) -> Any:
        """Return what ``kubectl get ... -o json`` prints, parsed."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, objects: str, *options: str) -> str:
        """Apply YAML and return what kubectl prints."""
        return self.kubectl("apply", *options, "-f", "-", stdin=objects)

    def outside(
        self, *command: str, stdin: str | None = None, check: bool = True, timeout: float = 900.0
    ) -> str:
        """Run a command on the network next to the nodes, as a machine outside the cluster would.

        Raises:
            ToolError: It failed and ``check`` is set; its output is in the message.
        """
        done = subprocess.run(
            [*self.prefix, *command],
            input=stdin,
            env=self.environment(),
            check=False,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode:
            said = (done.stderr or done.stdout).strip()[-3000:]
            raise ToolError(f"{' '.join(map(str, command))[:300]} ended with code {done.returncode}:\n{said}")
        return done.stdout + ("" if check else done.stderr)

    def environment(self) -> dict[str, str]:
        """Return the environment for helm and kubectl."""
        home = STATE / "home"
        return {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "KUBECACHEDIR": str(home / "kube"),
            "HELM_CACHE_HOME": str(home / "helm"),
            "HELM_CONFIG_HOME": str(home / "helm"),
            "HELM_DATA_HOME": str(home / "helm"),
        }

    def _ready_nodes(self) -> int:
        found = self.kubectl("get", "nodes", "--no-headers", check=False)
        return sum(" Ready" in line for line in found.splitlines())


def _throw_away(folder: Path) -> None:
    """Delete a folder beside everything else: a node's images are files in hundreds of thousands."""
    trash = folder.with_name(f"trash-{time.time_ns()}")
    folder.rename(trash)
    for each in folder.parent.glob("trash-*"):
        subprocess.Popen(["nice", "-n", "19", "rm", "-rf", str(each)], start_new_session=True)


def _import(folder: Path, number: int) -> None:
    """Import every image of an OCI folder into one node."""
    with subprocess.Popen(["tar", "-C", str(folder), "-c", "."], stdout=subprocess.PIPE) as tar:
        assert tar.stdout is not None
        _import_from(tar.stdout, number)


def _import_from(archive: IO[bytes], number: int) -> str:
    """Import every image of an archive into one node; what `ctr` says."""
    socket = STATE / f"node{number}" / "containerd.sock"
    done = subprocess.run(
        [str(BIN / "ctr"), "-a", str(socket), "-n", "k8s.io", "images", "import", "-"],
        stdin=archive,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise ToolError(f"node {number} does not import the images: {done.stderr[-800:]}")
    return done.stdout


def _certificates(nodes: int) -> None:
    authority = Authority(STATE / "pki")
    authority.service_account_key()
    cluster = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
    subjects = [
        Subject("apiserver", "kube-apiserver", dns=cluster, addresses=("127.0.0.1", API, "10.96.0.1")),
        Subject("kubelet-client", "apiserver-kubelet-client", "system:masters"),
        Subject("front-proxy", "front-proxy-client"),
        Subject("admin", "admin", "system:masters"),
        Subject("controllers", "system:kube-controller-manager"),
        Subject("scheduler", "system:kube-scheduler"),
        Subject("proxy", "system:kube-proxy"),
    ]
    for number in range(1, nodes + 1):
        name = f"node{number}"
        subjects.append(Subject(name, f"system:node:{name}", "system:nodes", (name,), (f"10.90.0.{number}",)))
    for subject in subjects:
        authority.issue(subject)
    for file in ("admin", "controllers", "scheduler", "proxy", *(f"node{n}" for n in range(1, nodes + 1))):
        authority.kubeconfig(file, f"https://{API}:6443")


def _network(nodes: int) -> None:
    """One namespace a node; the first holds the bridge that joins all, and the world outside beside them."""
    names = [f"lookout-node{number}" for number in range(1, nodes + 1)]
    for name in (*names, OUTSIDE):
        _ip("netns", "add", name)
        _ip("-n", name, "link", "set", "lo", "up")
    for name in names:
        _call("ip", "netns", "exec", name, "sysctl", "-qw", "net.ipv4.ip_forward=1")
    first = names[0]
    _ip("-n", first, "link", "add", "nodes", "type", "bridge")
    _ip("-n", first, "addr", "add", f"{API}/24", "dev", "nodes")
    _ip("-n", first, "link", "set", "nodes", "up")
    others = [(name, f"10.90.0.{number}") for number, name in enumerate(names, 1) if number > 1]
    for index, (name, address) in enumerate([*others, (OUTSIDE, OUTSIDE_ADDRESS)]):
        port = f"port{index}"
        _ip("link", "add", "nodes", "netns", name, "type", "veth", "peer", "name", port, "netns", first)
        _ip("-n", first, "link", "set", port, "master", "nodes", "up")
        _ip("-n", name, "addr", "add", f"{address}/24", "dev", "nodes")
        _ip("-n", name, "link", "set", "nodes", "up")
        _ip("-n", name, "route", "add", "default", "via", API)
    _ip("-n", first, "route", "add", "default", "via", OUTSIDE_ADDRESS)
    for here in range(1, nodes + 1):
        for there in range(1, nodes + 1):
            if here != there:
                route = (f"10.244.{there}.0/24", "via", f"10.90.0.{there}")
                _ip("-n", names[here - 1], "route", "add", *route)


def _control_plane(gates: Sequence[str]) -> None:
    folder = STATE / "control"
    folder.mkdir(parents=True)
    pki = STATE / "pki"
    etcd = "http://127.0.0.1:2379"
    features = {"feature-gates": ",".join(f"{gate}=true" for gate in gates)} if gates else {}
    admin = ["--kubeconfig", str(pki / "admin.kubeconfig")]
    apiserver = {**_apiserver(pki), "etcd-servers": etcd, **features}
    manager = {
        **_three_times(pki / "controllers.kubeconfig"),
        "leader-elect": "false",
        "use-service-account-credentials": "true",
        "root-ca-file": pki / "ca.crt",
        "service-account-private-key-file": pki / "sa.key",
        "cluster-signing-cert-file": pki / "ca.crt",
        "cluster-signing-key-file": pki / "ca.key",
        "allocate-node-cidrs": "true",
        "cluster-cidr": PODS,
        "service-cluster-ip-range": _SERVICES,
        "bind-address": "127.0.0.1",
        "horizontal-pod-autoscaler-sync-period": AUTOSCALER_PERIOD,
        **features,
    }
    scheduler = {
        **_three_times(pki / "scheduler.kubeconfig"),
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
    }
    etcd_options = {
        "data-dir": folder / "etcd",
        "listen-client-urls": etcd,
        "advertise-client-urls": etcd,
        "listen-peer-urls": "http://127.0.0.1:2380",
        "log-level": "warn",
    }
    # Roles are written while the API server starts: what uses them waits until it is ready.
    ready = [_KUBE, "kubectl", *admin, "get", "--raw", "/readyz"]
    plan = Plan(
        str(folder),
        {
            "etcd": [_KUBE, "etcd", "--unsafe-no-fsync", *_flags(etcd_options)],
            "apiserver": [_KUBE, "kube-apiserver", *_flags(apiserver)],
            "controllers": [_KUBE, "kube-controller-manager", *_flags(manager)],
            "scheduler": [_KUBE, "kube-scheduler", *_flags(scheduler)],
        },
        wait_for={"controllers": ready},
    )
    _begin(plan, "lookout-node1", ["--pid", "--fork", "--kill-child", "--mount-proc"])


def _apiserver(pki: Path) -> dict[str, object]:
    """Options of the API server, etcd aside."""
    return {
        "service-cluster-ip-range": _SERVICES,
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "secure-port": "6443",
        "bind-address": "0.0.0.0",
        "advertise-address": API,
        "client-ca-file": pki / "ca.crt",
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "kubelet-client-certificate": pki / "kubelet-client.crt",
        "kubelet-client-key": pki / "kubelet-client.key",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-preferred-address-types": "InternalIP",
        "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
        "service-account-key-file": pki / "sa.pub",
        "service-account-signing-key-file": pki / "sa.key",
        "requestheader-client-ca-file": pki / "ca.crt",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": pki / "front-proxy.crt",
        "proxy-client-key-file": pki / "front-proxy.key",
    }


def _three_times(kubeconfig: Path) -> dict[str, Path]:
    return dict.fromkeys(("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"), kubeconfig)


def _node(number: int) -> None:
    name = f"node{number}"
    folder, pki = STATE / name, STATE / "pki"
    folder.mkdir(parents=True)
    socket = folder / "containerd.sock"
    (folder / "cni").mkdir()
    (folder / "cni" / "10-bridge.conflist").write_text(json.dumps(_cni(number)))
    (folder / "containerd.toml").write_text(_containerd(folder, socket))
    (folder / "resolv.conf").write_text(f"nameserver {API}\n")
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(_kubelet(folder, pki, name, socket)))
    (folder / "proxy.yaml").write_text(yaml.safe_dump(_proxy(pki, name)))
    try:
        node_groups = groups.make(name)
    except OSError as error:
        raise ToolError(f"the control groups of {name} cannot be made: {error}") from error
    (folder / "cgroups").write_text("\n".join(map(str, node_groups.tops)))
    plan = Plan(
        str(folder),
        {
            "containerd": [str(BIN / "containerd"), "--config", str(folder / "containerd.toml")],
            "kubelet": [
                _KUBE,
                "kubelet",
                f"--config={folder}/kubelet.yaml",
                f"--kubeconfig={pki}/{name}.kubeconfig",
                f"--hostname-override={name}",
                f"--node-ip=10.90.0.{number}",
                f"--root-dir={folder}/kubelet",
            ],
            "proxy": [_KUBE, "kube-proxy", f"--config={folder}/proxy.yaml"],
        },
        node=True,
        hostname=name,
        wait_for={"kubelet": ["test", "-S", str(socket)]},
        group_version=groups.version() or 1,
    )
    namespaces = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--uts", "--ipc"]
    _begin(plan, f"lookout-{name}", [*namespaces, "--propagation", "private"], node_groups)


def _begin(
    plan: Plan, netns: str, namespaces: Sequence[str], node_groups: groups.NodeGroups | None = None
) -> None:
    folder = Path(plan.folder)
    plan.save(folder / "plan.json")
    init = [sys.executable, "-m", "tests.cluster.node_init", str(folder / "plan.json")]
    command = ["ip", "netns", "exec", netns, "unshare", *namespaces, *init]
    path = os.pathsep.join((str(BIN), os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    with (folder / "init.log").open("wb") as log:
        process = subprocess.Popen(
            node_groups.command(command) if node_groups else command,
            cwd=workshop.ROOT,
            env={**os.environ, "PATH": path},
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    (folder / "pid").write_text(str(process.pid))


def _cni(number: int) -> dict[str, Any]:
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": f"10.244.{number}.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "mtu": 1500,
        "ipam": addresses,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "lookout", "plugins": [bridge, ports]}


def _containerd(folder: Path, socket: Path) -> str:
    return f"""version = 3
root = "{folder}/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "{socket}"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{workshop.PAUSE_IMAGE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["{BIN}"]
  conf_dir = "{folder}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd]
  default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  BinaryName = "/usr/sbin/runc"
  SystemdCgroup = false
"""


def _kubelet(folder: Path, pki: Path, name: str, socket: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"{name}.crt"),
        "tlsPrivateKeyFile": str(pki / f"{name}.key"),
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "failCgroupV1": False,
        "clusterDNS": [_DNS],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{socket}",
        "resolvConf": str(folder / "resolv.conf"),
        "volumePluginDir": str(folder / "plugins"),
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        "syncFrequency": "10s",
    }


def _proxy(pki: Path, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(pki / "proxy.kubeconfig")},
        "mode": "iptables",
        "clusterCIDR": PODS,
        "hostnameOverride": name,
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


def _coredns() -> str:
    return (Path(__file__).parent / "coredns.yaml").read_text().replace("IMAGE", workshop.COREDNS_IMAGE)


def _remove_cgroup(folder: Path) -> None:
    for child in sorted(folder.rglob("*"), reverse=True):
        if child.is_dir():
            _rmdir(child)
    _rmdir(folder)


def _rmdir(folder: Path) -> None:
    for _ in range(50):
        try:
            folder.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)


def _namespaces() -> list[str]:
    found = subprocess.run(["ip", "netns", "list"], check=False, capture_output=True, text=True).stdout
    names = [line.split()[0] for line in found.splitlines() if line]
    return [name for name in names if name == OUTSIDE or name.startswith("lookout-node")]


def _flags(options: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


def _alive(pid_file: Path) -> bool:
    try:
        os.kill(int(pid_file.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


def _wait(what: str, done: Any) -> None:
    deadline = time.monotonic() + _READY_S
    while not done():
        if time.monotonic() > deadline:
            raise ToolError(f"{what} did not come up within {_READY_S:.0f} s; logs lie in {STATE}/*/log")
        time.sleep(0.3)


def _ip(*arguments: str) -> None:
    _call("ip", *arguments)


def _call(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ToolError(f"{' '.join(command)}: {done.stderr.strip()}")


def main() -> None:
    """Start, end or use a cluster from a shell."""
    action = sys.argv[1] if len(sys.argv) > 1 else ""
    if action == "up":
        workshop.build_base()
        workshop.build_coredns()
        Cluster(int(sys.argv[2]) if len(sys.argv) > 2 else 1, sys.argv[3:]).up()
    elif action == "down":
        Cluster().down()
    elif action == "run":
        cluster = Cluster()
        command = ["ip", "netns", "exec", OUTSIDE, *sys.argv[2:]]
        env = cluster.environment()
        env["PATH"] = f"{BIN}{os.pathsep}{env['PATH']}"
        sys.exit(subprocess.run(command, env=env, check=False).returncode)
    else:
        raise SystemExit(
            "usage: python -m tests.cluster.cluster up [NODES [GATE ...]] | down | run COMMAND..."
        )


if __name__ == "__main__":
    try:
        main()
    except ToolError as error:
        sys.exit(f"tests.cluster.cluster: {error}")
