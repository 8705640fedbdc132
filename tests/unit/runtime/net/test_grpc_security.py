"""Who may call a gRPC server: certificates, tokens, and what happens when their files change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lookout.errors import StartupError
from lookout.runtime.net import Channels, GrpcSecurity, GrpcServer, load_connections
from lookout.runtime.net.serving import serving_fault
from lookout.v1 import tensors_pb2, tensors_pb2_grpc
from tests.certificates import NAME, Authority


class Tensors(tensors_pb2_grpc.TensorServiceServicer):  # type: ignore[misc]
    def GetTensor(self, request: object, context: object) -> Iterator[tensors_pb2.GetTensorResponse]:
        yield tensors_pb2.GetTensorResponse(chunk=b"abc")


def security(**values: Any) -> GrpcSecurity:
    return load_connections(
        GrpcSecurity, {f"LOOKOUT_{name.upper()}": str(value) for name, value in values.items()}
    )


@contextmanager
def serving(of: GrpcSecurity) -> Iterator[str]:
    server = GrpcServer("127.0.0.1", 0, security=of)
    server.add(
        lambda one: tensors_pb2_grpc.add_TensorServiceServicer_to_server(Tensors(), one),
        "lookout.v1.TensorService",
    )
    server.start()
    server.serving(True)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.stop(0.1)


def read(channel: grpc.Channel) -> bytes:
    stub = tensors_pb2_grpc.TensorServiceStub(channel)  # type: ignore[no-untyped-call]
    parts = stub.GetTensor(tensors_pb2.GetTensorRequest(), timeout=20.0)
    return b"".join(part.chunk for part in parts)


def refused(address: str, of: GrpcSecurity) -> grpc.StatusCode:
    with Channels(of).open(address) as channel, pytest.raises(grpc.RpcError) as caught:
        read(channel)
    code: grpc.StatusCode = caught.value.code()
    return code


def test_both_sides_show_certificates(tmp_path: Path) -> None:
    ours, others = Authority(), Authority("somebody else")
    server = security(**ours.write(tmp_path / "server"))
    reader = security(**ours.write(tmp_path / "reader"), grpc_tls_name=NAME)
    stranger = security(**others.write(tmp_path / "stranger"), grpc_tls_name=NAME)
    # A stranger who trusts our authority, and so accepts the server, but holds no certificate of it.
    pretender = security(
        grpc_ca_file=tmp_path / "server/ca.pem",
        grpc_cert_file=tmp_path / "stranger/cert.pem",
        grpc_key_file=tmp_path / "stranger/key.pem",
        grpc_tls_name=NAME,
    )
    with serving(server) as address:
        with Channels(reader).open(address) as channel:
            assert read(channel) == b"abc"
        for each in (stranger, pretender, security()):
            assert refused(address, each) is grpc.StatusCode.UNAVAILABLE
    with serving(stranger) as address:
        assert refused(address, reader) is grpc.StatusCode.UNAVAILABLE  # nor is just any server believed


@pytest.mark.parametrize("variable", ["https_proxy", "http_proxy", "grpc_proxy"])
@pytest.mark.parametrize("tls", [False, True])
def test_services_reach_each_other_past_a_proxy(
    variable: str, tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy of a company is for addresses outside, and may not even answer."""
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    files = security(**Authority().write(tmp_path), grpc_tls_name=NAME) if tls else security()
    with serving(files) as address, Channels(files).open(address) as channel:
        assert read(channel) == b"abc"
        assert serving_fault(channel, 20.0) is None


def test_a_service_that_is_not_reached_has_a_fault() -> None:
    with Channels(security()).open("127.0.0.1:9") as channel:
        assert (serving_fault(channel, 20.0) or "").startswith("unavailable: ")


def test_a_certificate_for_another_name_is_not_believed(tmp_path: Path) -> None:
    files = Authority().write(tmp_path)
    with serving(security(**files)) as address:
        assert refused(address, security(**files, grpc_tls_name="other.test")) is grpc.StatusCode.UNAVAILABLE


def test_certificates_are_replaced_without_a_restart(tmp_path: Path) -> None:
    first, second = Authority("first"), Authority("second")
    files = security(**first.write(tmp_path / "server"), grpc_tls_name=NAME)
    reader = Channels(security(**first.write(tmp_path / "reader"), grpc_tls_name=NAME))
    with serving(files) as address:
        with reader.open(address) as channel:
            assert read(channel) == b"abc"
        before = reader.version
        second.write(tmp_path / "server")
        with reader.open(address) as channel, pytest.raises(grpc.RpcError):
            read(channel)
        second.write(tmp_path / "reader")
        assert reader.version > before
        with reader.open(address) as channel:
            assert read(channel) == b"abc"


def test_halves_of_two_certificates_leave_the_old_pair_in_use(tmp_path: Path) -> None:
    authority = Authority()
    of = security(**authority.write(tmp_path / "server"), grpc_tls_name=NAME)
    with serving(of) as address:
        authority.write(tmp_path / "other")
        (tmp_path / "other/key.pem").replace(tmp_path / "server/key.pem")
        reader = security(
            grpc_ca_file=tmp_path / "other/ca.pem",
            grpc_cert_file=tmp_path / "reader/cert.pem",
            grpc_key_file=tmp_path / "reader/key.pem",
            grpc_tls_name=NAME,
        )
        authority.write(tmp_path / "reader")
        with Channels(reader).open(address) as channel:
            assert read(channel) == b"abc"


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("quite a long secret\n")
    of = security(grpc_token_file=token)
    with serving(of) as address:
        with Channels(of).open(address) as channel:
            assert read(channel) == b"abc"
            token.write_text("another long secret")
            assert read(channel) == b"abc"  # both sides took up the new one
        assert refused(address, security()) is grpc.StatusCode.UNAUTHENTICATED
        assert refused(address, security(grpc_token="quite a long secret")) is grpc.StatusCode.UNAUTHENTICATED
        with grpc.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=20.0)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_a_token_and_certificates_are_both_asked_for(tmp_path: Path) -> None:
    files = {**Authority().write(tmp_path), "grpc_tls_name": NAME}
    of = security(**files, grpc_token="secret")
    with serving(of) as address:
        with Channels(of).open(address) as channel:
            assert read(channel) == b"abc"
        assert refused(address, security(**files)) is grpc.StatusCode.UNAUTHENTICATED


def test_other_machines_are_not_served_in_the_clear() -> None:
    for of in (security(), security(grpc_token="secret")):
        with pytest.raises(StartupError, match=r"LOOKOUT_HOST=0\.0\.0\.0 .*LOOKOUT_GRPC_CERT_FILE"):
            GrpcServer("0.0.0.0", 0, security=of)
    GrpcServer("0.0.0.0", 0, security=security(grpc_insecure=True)).stop(0)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    files = Authority().write(tmp_path)
    with pytest.raises(StartupError, match="LOOKOUT_GRPC_CA_FILE must be set, too"):
        security(grpc_cert_file=files["grpc_cert_file"], grpc_key_file=files["grpc_key_file"])
    files["grpc_key_file"].write_text("no key")
    with pytest.raises(StartupError, match=r"LOOKOUT_GRPC_KEY_FILE=.*cannot be used"):
        GrpcServer("127.0.0.1", 0, security=security(**files))
    with pytest.raises(StartupError, match=r"LOOKOUT_GRPC_TOKEN_FILE=.*nowhere"):
        Channels(security(grpc_token_file=tmp_path / "nowhere"))
