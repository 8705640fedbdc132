"""Object stores whose credentials may change while a process runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lookout.errors import StartupError, TransientError
from lookout.runtime.net.connections import read_secret
from lookout.text import clean, public_url

if TYPE_CHECKING:
    from obstore.store import S3Credential

ACCESS_KEY_FILE: Final = "AWS_ACCESS_KEY_ID_FILE"
SECRET_KEY_FILE: Final = "AWS_SECRET_ACCESS_KEY_FILE"
#: time after which the files are read again; old and new credentials must both be valid for at least this
#: time
FRESH: Final = timedelta(minutes=1)


def open_store(url: str) -> Any:
    """Open an obstore store: `s3://bucket/prefix`, `gs://...`, `az://...`, or a folder, which is created.

    Credentials come from the usual variables (`AWS_ACCESS_KEY_ID`, ...). For s3:// they may instead come from
    the two files that `AWS_ACCESS_KEY_ID_FILE` and `AWS_SECRET_ACCESS_KEY_FILE` name, which are read again
    when they change.

    Raises:
        OSError: The folder cannot be created.
        ValueError: The URL cannot be used, or only one of the two files is named.
        obstore.exceptions.BaseError: The address cannot be used.
    """
    # Imported here, because not every service has this library.
    from obstore.store import LocalStore, from_url

    if "://" not in url:
        Path(url).mkdir(parents=True, exist_ok=True, mode=0o700)
        return LocalStore(url)
    files = [os.environ.get(name) for name in (ACCESS_KEY_FILE, SECRET_KEY_FILE)]
    if not url.startswith("s3://") or not any(files):
        return from_url(url)
    access, secret = files
    if not access or not secret:
        raise ValueError(f"{ACCESS_KEY_FILE} and {SECRET_KEY_FILE} go together: set both")

    def credentials() -> S3Credential:
        return {
            "access_key_id": read_secret(Path(access), ACCESS_KEY_FILE),
            "secret_access_key": read_secret(Path(secret), SECRET_KEY_FILE),
            "expires_at": datetime.now(UTC) + FRESH,
        }

    return from_url(url, credential_provider=credentials)


def store_of_setting(name: str, url: str) -> Any:
    """Open the store that a setting names, as `open_store` does.

    Raises:
        StartupError: The store cannot be opened; the text names the setting.
    """
    from obstore.exceptions import BaseError

    try:
        return open_store(url)
    except (BaseError, OSError, ValueError) as error:
        raise StartupError(f"{name}={public_url(url)}: the store cannot be opened: {error}") from error


@contextmanager
def asking_store(what: str) -> Iterator[None]:
    """Turn a store's failures in the block into TransientError; `FileNotFoundError` is not changed.

    Args:
        what: What messages call the store.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise TransientError(f"{what} does not answer: {clean(lines[0], 300)}") from error
