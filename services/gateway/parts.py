"""The objects that the gateway's routes share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from starlette.requests import Request

from lookout.past.erasures import Fence
from lookout.rules.masks import Masks
from lookout.runtime.net.links import read_link_key
from lookout.runtime.net.push_keys import public_push_key, read_push_key
from lookout.services.gateway.access.limits import CallRate, Failures, Followers
from lookout.services.gateway.access.links import SignInLink
from lookout.services.gateway.access.once import UsedOnce
from lookout.services.gateway.access.provider import Provider
from lookout.services.gateway.access.sessions import Sessions
from lookout.services.gateway.access.sign_ins import SignIns
from lookout.services.gateway.access.tokens import Tokens
from lookout.services.gateway.events import Feed
from lookout.services.gateway.history.database import Database
from lookout.services.gateway.history.ingest import Ingest
from lookout.services.gateway.history.queries import document, newest_alert
from lookout.services.gateway.history.records import erased
from lookout.services.gateway.history.wanted import Wanted
from lookout.services.gateway.media.footage import Footage
from lookout.services.gateway.media.keeping import Keeping
from lookout.services.gateway.media.kept_store import KeptStore
from lookout.services.gateway.media.live import Live
from lookout.services.gateway.media.store import Media
from lookout.services.gateway.prose import ProseWriter
from lookout.services.gateway.settings import GatewaySettings
from lookout.services.gateway.uploads import Uploads
from lookout.services.gateway.writes import Writes
from lookout.v1.alerts_pb2 import Alert
from lookout.wire import MASKS


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects that routes share. Made at the start, closed at the end."""

    settings: GatewaySettings
    database: Database
    sessions: Sessions
    tokens: Tokens
    link: SignInLink | None
    once: UsedOnce
    provider: Provider | None
    rate: CallRate
    failures: Failures
    sign_ins: SignIns
    followers: Followers
    ingest: Ingest
    writes: Writes
    feed: Feed
    media: Media
    live: Live
    keeping: Keeping | None
    uploads: Uploads | None
    link_key: bytes | None
    push_key: str | None
    prose: ProseWriter | None


def make_parts(settings: GatewaySettings) -> Parts:
    """Make a gateway's parts, and bring its database's schema up to date.

    Raises:
        StartupError: The database cannot be used.
    """
    database = Database(settings.database())
    database.migrate()
    ingest = Ingest(settings, database)
    masks = Masks(lambda camera: _masks(database, camera))
    media = Media(Footage(settings), lambda: _fence(database), masks, settings.masked_clips)
    failures, writes = Failures(), Writes(settings, database)
    return Parts(
        settings,
        database,
        Sessions(database, settings.session_hours * 3600),
        Tokens(database),
        None if settings.sign_in_file is None else SignInLink(settings.sign_in_file),
        UsedOnce(database),
        _provider(settings),
        CallRate(settings.calls_per_minute),
        failures,
        SignIns(failures, writes),
        Followers(),
        ingest,
        writes,
        Feed(database, ingest.changed),
        media,
        Live(settings, media),
        None if settings.keep_url is None else _keeping(settings, database, media, masks),
        None if settings.upload_url is None else Uploads(settings.upload_url, settings.upload_bytes),
        _link_key(settings.link_key_file),
        _push_key(settings.push_key_file),
        None if settings.prose_url is None else ProseWriter(settings),
    )


def _link_key(file: Path | None) -> bytes | None:
    return None if file is None else read_link_key(file, "LOOKOUT_LINK_KEY_FILE")


def _push_key(file: Path | None) -> str | None:
    return None if file is None else public_push_key(read_push_key(file, "LOOKOUT_PUSH_KEY_FILE"))


def _keeping(settings: GatewaySettings, database: Database, media: Media, masks: Masks) -> Keeping:
    def newest(incident: str) -> Alert | None:
        with database.reading() as connection:
            return newest_alert(connection, incident)

    return Keeping(
        KeptStore(str(settings.keep_url)),
        media,
        lambda: _fence(database),
        limit=settings.keep_bytes,
        days=settings.history_days,
        masks=masks,
        newest=newest,
        wanted=Wanted(database),
    )


def _provider(settings: GatewaySettings) -> Provider | None:
    if not settings.oidc.issuer or settings.public_url is None:
        return None
    return Provider(settings.oidc, settings.public_url)


def _fence(database: Database) -> Fence:
    with database.reading() as connection:
        return erased(connection)


def _masks(database: Database, camera: str) -> bytes | None:
    with database.reading() as connection:
        row = document(connection, MASKS.name, camera)
    return None if row is None else bytes(row.body)


def parts_of(request: Request) -> Parts:
    """Return the parts of the gateway that handles a request."""
    return cast(Parts, request.app.state.parts)
