"""A directory behind a Sentinel: its entries are written to whichever server is the primary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lookout.errors import StartupError
from lookout.runtime.net import RedisSecurity, load_connections, without_security
from lookout.runtime.net.redis_errors import REDIS_ERRORS
from lookout.services.camera_agent.leases import Leases
from tests.eventually import eventually
from tests.redis_sentinel import SERVICE, Watched

SECURITY = without_security().model_copy(update={"redis_sentinel": SERVICE})


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with Watched(tmp_path) as watched:
        yield watched


@pytest.mark.slow
def test_a_lost_primary_is_replaced_while_clients_stay(watched: Watched) -> None:
    """The first Sentinel of the address does not answer, as one that is gone."""
    client = SECURITY.redis_client(watched.url, socket_timeout=2.0, socket_connect_timeout=2.0)
    leases = Leases(client, "agent-0", 600.0)
    leases.add("gate")
    leases.refresh()
    assert leases.holds("gate")
    assert client.info("server")["tcp_port"] == watched.primary.port
    watched.primary.kill()

    def taken() -> bool:
        leases.add("yard")
        with suppress(*REDIS_ERRORS):
            leases.refresh()
        return leases.holds("yard")

    eventually(taken)
    assert client.info("server")["tcp_port"] != watched.primary.port
    client.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"CLUSTER": "true", "SENTINEL": "a"}, "REDIS_CLUSTER and LOOKOUT_REDIS_SENTINEL are both set"),
        ({"SENTINEL_AUTH": "true"}, "LOOKOUT_REDIS_SENTINEL_AUTH needs LOOKOUT_REDIS_SENTINEL and"),
    ],
)
def test_settings_that_do_not_fit_are_named(values: dict[str, str], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        load_connections(RedisSecurity, {f"LOOKOUT_REDIS_{name}": value for name, value in values.items()})


@pytest.mark.parametrize("url", ["http://host:26379", "redis://", "redis://a,:26379/0", "redis://a:b/0"])
def test_an_address_of_no_sentinel_is_refused(url: str) -> None:
    with pytest.raises(StartupError, match="LOOKOUT_REDIS_URL="):
        SECURITY.redis_client(url)
