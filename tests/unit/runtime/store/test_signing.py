"""A caller shows the fleet's token to addresses that the fleet has signed, and to no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lookout.runtime.net import GrpcSecurity, load_connections
from lookout.runtime.store.directory import Announcer, Directory
from lookout.runtime.store.labels import entry_of
from lookout.runtime.store.settings import StoreSettings
from lookout.runtime.store.signing import AddressSigner
from lookout.v1.lineage_pb2 import STAGE_FRAMES, TensorRef

REF = TensorRef(id="t", stage=STAGE_FRAMES, camera="gate", epoch=5)
REF.input.topic, REF.input.partition, REF.input.offset = "camera.segments.v1", 0, 3


def directory(url: str, token: Path) -> Directory:
    """A directory of a fleet with this token."""
    security = load_connections(GrpcSecurity, {"LOOKOUT_GRPC_TOKEN_FILE": str(token)})
    return Directory(url, StoreSettings(), signer=AddressSigner.of(security))


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret-one")
    return path


@pytest.mark.parametrize(
    "lease",
    [
        json.dumps({"epoch": 7, "address": "203.0.113.9:1"}),
        json.dumps({"epoch": 7, "address": "203.0.113.9:1 " + "0" * 64}),
        json.dumps({"epoch": "x", "address": "a"}),
        json.dumps({"address": "a"}),
        "[" * 5000,
        "7",
        "no json",
        "",
    ],
)
def test_a_stranger_s_lease_is_left_out(redis_url: str, token: Path, lease: str) -> None:
    own = directory(redis_url, token)
    announcer = Announcer(own, STAGE_FRAMES, "honest", "127.0.0.1:9", lambda: [entry_of(REF)])
    announcer.renew()
    own.client.set(f"lookout:{{pods:{STAGE_FRAMES}}}:lease:evil", lease)
    own.client.hset(f"lookout:{{pods:{STAGE_FRAMES}}}:roster", "evil", "203.0.113.9:1")
    own.client.hset(entry_of(REF), "evil", "7")
    assert [holder.address for holder in own.find(REF)] == ["127.0.0.1:9"]
    assert own.replicas(STAGE_FRAMES) == ["127.0.0.1:9"]
    own.close()


def test_a_signature_of_another_pod_or_address_does_not_count(redis_url: str, token: Path) -> None:
    signer = directory(redis_url, token).signer
    signed = signer.sign(STAGE_FRAMES, "a", "10.0.0.1:1")
    assert signer.check(STAGE_FRAMES, "a", signed) == "10.0.0.1:1"
    assert signer.check(STAGE_FRAMES, "b", signed) is None
    assert signer.check(STAGE_FRAMES, "a", signed.replace("10.0.0.1", "10.0.0.2")) is None
    assert signer.check(STAGE_FRAMES + 1, "a", signed) is None


def test_a_new_token_signs_anew(redis_url: str, token: Path) -> None:
    own = directory(redis_url, token)
    announcer = Announcer(own, STAGE_FRAMES, "honest", "127.0.0.1:9", list)
    announcer.renew()
    token.write_text("secret-two, which is longer")
    assert own._roster(STAGE_FRAMES) == []
    announcer.renew()
    assert own.replicas(STAGE_FRAMES) == ["127.0.0.1:9"]
    own.close()


@pytest.mark.parametrize(
    "value", ["[" * 5000, "7", '"a"', "null", '{"started": "x"}', '{"epoch": 1, "started": 1e300}']
)
def test_a_strange_lease_under_an_honest_name_gives_way(redis_url: str, token: Path, value: str) -> None:
    own = directory(redis_url, token)
    own.client.set(f"lookout:{{pods:{STAGE_FRAMES}}}:lease:honest", value)
    own.client.set(f"lookout:{{pods:{STAGE_FRAMES}}}:epoch:honest", "9" * 400)
    announcer = Announcer(own, STAGE_FRAMES, "honest", "127.0.0.1:9", lambda: [entry_of(REF)])
    assert announcer.renew()
    assert [holder.address for holder in own.find(REF)] == ["127.0.0.1:9"]
    announcer.stop()
    own.close()


def test_keys_of_another_type_give_way(redis_url: str, token: Path) -> None:
    """A key of the wrong type would make every script and every look-up fail, for good."""
    own = directory(redis_url, token)
    keys = [f"lookout:{{pods:{STAGE_FRAMES}}}:{what}" for what in ("roster", "lease:honest", "epoch:honest")]
    for key in (*keys, entry_of(REF)):
        own.client.delete(key)
        own.client.rpush(key, "a")
    assert own.find(REF) == []
    assert own.replicas(STAGE_FRAMES) == []
    for key in (*keys, entry_of(REF)):
        own.client.delete(key)
        own.client.rpush(key, "a")
    announcer = Announcer(own, STAGE_FRAMES, "honest", "127.0.0.1:9", lambda: [entry_of(REF)])
    assert announcer.renew()
    assert [holder.address for holder in own.find(REF)] == ["127.0.0.1:9"]
    own.client.rpush(keys[1] + "x", "a")
    announcer.stop()
    own.close()
