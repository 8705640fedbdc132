"""A camera: GStreamer's RTSP server over one file.

Run it with Debian's own Python (`/usr/bin/python3`): `tests/rtsp_camera.py` names the packages.
"""

import argparse
import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
gi.require_version("GstRtsp", "1.0")
from gi.repository import GLib, Gst, GstRtsp, GstRtspServer  # noqa: E402


def main() -> None:
    """Serve until killed; prints the port."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", default="0")
    parser.add_argument("--user")
    parser.add_argument("--password")
    parser.add_argument("--digest", action="store_true", help="take the password's digest, not the password")
    given = parser.parse_args()
    Gst.init(None)
    server = GstRtspServer.RTSPServer()
    server.set_address(given.address)
    server.set_service(given.port)
    factory = GstRtspServer.RTSPMediaFactory()
    factory.set_launch(
        f"( filesrc location={given.file} ! qtdemux ! h264parse config-interval=-1 "
        "! rtph264pay name=pay0 pt=96 )"
    )
    factory.set_shared(True)
    if given.user:
        protect(server, factory, given.user, given.password, digest=given.digest)
    server.get_mount_points().add_factory("/stream", factory)
    if not server.attach(None):
        sys.exit("cannot listen")
    print(server.get_bound_port(), flush=True)
    GLib.MainLoop().run()


def protect(
    server: GstRtspServer.RTSPServer,
    factory: GstRtspServer.RTSPMediaFactory,
    user: str,
    password: str,
    *,
    digest: bool,
) -> None:
    """Ask for a user name and a password."""
    token = GstRtspServer.RTSPToken()
    token.set_string("media.factory.role", "viewer")
    auth = GstRtspServer.RTSPAuth()
    if digest:
        auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
        auth.add_digest(user, password, token)
    else:
        auth.add_basic(GstRtspServer.RTSPAuth.make_basic(user, password), token)
    server.set_auth(auth)
    permissions = GstRtspServer.RTSPPermissions()
    permissions.add_permission_for_role("viewer", "media.factory.access", True)
    permissions.add_permission_for_role("viewer", "media.factory.construct", True)
    factory.set_permissions(permissions)


if __name__ == "__main__":
    main()
