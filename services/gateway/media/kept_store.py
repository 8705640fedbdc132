"""The store of kept evidence: a folder or an object store. There is no other index.

INCIDENT/kept.json      the message KeptEvidence, written last INCIDENT/clip.mp4 INCIDENT/picture.jpg
"""

from __future__ import annotations

import re
import threading
from typing import Any, Final

import obstore
from cachetools import TTLCache

from lookout.runtime.net.object_store import asking_store, store_of_setting
from lookout.runtime.observe import logs
from lookout.text import public_url
from lookout.v1.media_pb2 import KeptEvidence
from lookout.wire import WireError, from_json, to_json

CLIP: Final = "clip.mp4"
PICTURE: Final = "picture.jpg"
_MANIFEST: Final = "kept.json"
#: valid incident ids; no other text may become part of an object's name
_ID: Final = re.compile(r"[0-9A-Za-z_-]{1,64}")
#: seconds for which manifests are cached; short, because another gateway may change the store
_FRESH_S: Final = 5.0


class KeptStore:
    """Stores evidence by incident. Thread-safe.

    Args:
        url: A URL such as `s3://bucket/prefix`, or a folder.

    Raises:
        StartupError: The store cannot be used.
    """

    def __init__(self, url: str) -> None:
        self._store: Any = store_of_setting("LOOKOUT_KEEP_URL", url)
        self._called = f"{public_url(url)}: the store of kept evidence"
        self._known: TTLCache[str, KeptEvidence | None] = TTLCache(10_000, ttl=_FRESH_S)
        self._lock = threading.Lock()

    def find(self, incident: str) -> KeptEvidence | None:
        """Return the manifest of an incident's kept evidence; None if nothing is kept.

        Raises:
            TransientError: The store does not answer.
        """
        if not _ID.fullmatch(incident):
            return None
        with self._lock:
            if incident in self._known:
                return self._known[incident]
        evidence = self._manifest(f"{incident}/{_MANIFEST}")
        with self._lock:
            self._known[incident] = evidence
        return evidence

    def read(self, incident: str, name: str) -> bytes | None:
        """Return an incident's clip or picture; None if it does not exist.

        Raises:
            TransientError: The store does not answer.
        """
        with asking_store(self._called):
            try:
                return bytes(obstore.get(self._store, f"{incident}/{name}").bytes())
            except FileNotFoundError:
                return None

    def put(self, evidence: KeptEvidence, clip: bytes | None, picture: bytes | None) -> None:
        """Store an incident's evidence, which replaces the evidence kept before.

        Raises:
            TransientError: The store does not answer; call `put` again.
        """
        with asking_store(self._called):
            for name, data in ((CLIP, clip), (PICTURE, picture), (_MANIFEST, to_json(evidence))):
                if data is not None:
                    obstore.put(self._store, f"{evidence.incident}/{name}", data)
        self._forget(evidence.incident)

    def remove(self, incident: str) -> None:
        """Remove an incident's kept evidence. The manifest is removed last, so that an interrupted removal
        can be continued.

        Raises:
            TransientError: The store does not answer; call `remove` again.
        """
        with asking_store(self._called):
            for name in (CLIP, PICTURE, _MANIFEST):
                try:
                    obstore.delete(self._store, f"{incident}/{name}")
                except FileNotFoundError:
                    continue
        self._forget(incident)

    def list(self) -> tuple[list[KeptEvidence], set[str], int]:
        """Return the manifests of complete evidence, the incidents with files but no manifest, and the bytes
        of all files.

        Raises:
            TransientError: The store does not answer.
        """
        evidence, incidents, count = [], set[str](), 0
        with asking_store(self._called):
            paths = []
            for chunk in obstore.list(self._store):
                for entry in chunk:
                    paths.append(str(entry["path"]))
                    count += int(entry["size"])
        for path in paths:
            incident, _, name = path.rpartition("/")
            if not _ID.fullmatch(incident):
                continue
            incidents.add(incident)
            manifest = self._manifest(path) if name == _MANIFEST else None
            if manifest is not None and manifest.incident == incident:
                evidence.append(manifest)
        return evidence, incidents - {manifest.incident for manifest in evidence}, count

    def _manifest(self, path: str) -> KeptEvidence | None:
        with asking_store(self._called):
            try:
                data = bytes(obstore.get(self._store, path).bytes())
            except FileNotFoundError:
                return None
        try:
            return from_json(data, KeptEvidence)
        except WireError as error:
            logs.get("gateway").warning("kept evidence cannot be read", path=path, error=str(error))
            return None

    def _forget(self, incident: str) -> None:
        with self._lock:
            self._known.pop(incident, None)
