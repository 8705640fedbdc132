"""Settings of the controller."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from lookout.runtime.worker import ServiceSettings

_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def _own_namespace() -> str:
    return _NAMESPACE.read_text().strip() if _NAMESPACE.exists() else "default"


class ControllerSettings(ServiceSettings):
    """Settings of the controller in addition to every service's; each field is `LOOKOUT_<FIELD>`."""

    namespace: str = Field(
        default_factory=_own_namespace, min_length=1, description="namespace of the resources"
    )
    lease: str = Field("lookout-controller", min_length=1, description="name of the leader election's lease")
    #: seconds without renewal after which a leader is replaced
    lease_s: ClassVar[int] = 15
    #: seconds after which every resource is compared again
    resync_s: ClassVar[float] = 60.0
    #: longest time of one round, in seconds; the next round continues where it ended
    round_s: ClassVar[float] = 60.0
    #: shortest time between two updates of a watch's status, in seconds
    status_s: ClassVar[float] = 10.0
    status_writes_s: float = Field(
        20.0,
        ge=1,
        le=1000,
        description="maximum number of status updates per second, all resources together; raise it for "
        "fleets of thousands of cameras",
    )
    recordings: bool = Field(
        False, description="handle Recording resources; set it if the fleet answers jobs about recordings"
    )
    notifications: bool = Field(
        False, description="handle Notification resources; set it if the fleet delivers notifications"
    )
    pods: str | None = Field(
        None,
        description="labels of the release's pods, which the controller removes from lost nodes; "
        "unset: it removes none",
    )
    credential: str | None = Field(
        None,
        description="name of the secret with the fleet's gRPC certificate, which the controller "
        "renews; unset: it is renewed elsewhere",
    )
    credential_days: float = Field(90.0, gt=0, description="days for which a certificate is valid")

    @property
    def kubeconfig(self) -> Path | None:
        """Outside a cluster, the file with the API server's address and credentials (`KUBECONFIG`); else
        None.
        """
        return Path(os.environ["KUBECONFIG"]) if "KUBECONFIG" in os.environ else None
