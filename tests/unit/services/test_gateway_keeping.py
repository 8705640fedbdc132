"""Kept evidence goes with its age and with its camera; damaged entries are no evidence."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from lookout.administration.masks import next_masks
from lookout.errors import StartupError
from lookout.past.erasures import Fence
from lookout.rules.masks import Masks
from lookout.services.gateway.media.keeping import Keeping
from lookout.services.gateway.media.kept_store import CLIP, KeptStore
from lookout.services.gateway.media.store import Media
from lookout.v1.erasures_pb2 import Erasure
from lookout.v1.media_pb2 import KeptEvidence
from lookout.v1.watches_pb2 import Point, Zone
from lookout.wire import to_json

DAY_S = 86_400


def evidence(incident: str, end_s: int, camera: str = "gate") -> KeptEvidence:
    """Ten seconds of a camera that are kept."""
    kept = KeptEvidence(incident=incident, camera=camera, complete=True, bytes=4)
    kept.start.FromSeconds(end_s - 10)
    kept.end.FromSeconds(end_s)
    kept.alert.end.FromSeconds(end_s)
    return kept


def keeping(
    store: KeptStore, now_s: float, erased: Fence | None = None, masks: Masks | None = None
) -> Keeping:
    """Nothing is made here, so nothing makes it."""
    fence = erased or Fence()
    return Keeping(
        store,
        cast("Media", None),
        lambda: fence,
        limit=1 << 20,
        days=30,
        masks=masks or Masks(),
        newest=lambda _: None,
        clock=lambda: now_s,
    )


def stored(store: KeptStore) -> set[str]:
    """The incidents of which something is kept."""
    return {kept.incident for kept in store.list()[0]}


def test_evidence_is_kept_for_as_long_as_its_incident(tmp_path: Path) -> None:
    store = KeptStore(str(tmp_path))
    store.put(evidence("old", 100 * DAY_S), b"clip", None)
    store.put(evidence("young", 120 * DAY_S), b"clip", None)
    keeping(store, 129 * DAY_S).sweep()
    assert stored(store) == {"old", "young"}
    keeping(store, 131 * DAY_S).sweep()
    assert stored(store) == {"young"}
    assert store.read("old", CLIP) is None


def test_what_was_kept_without_the_mask_is_not_shown(tmp_path: Path) -> None:
    store = KeptStore(str(tmp_path))
    store.put(evidence("old", 100), b"clip", b"picture")
    door = Zone(points=[Point(x=0.1, y=0.1), Point(x=0.9, y=0.1), Point(x=0.9, y=0.9)])
    record = to_json(next_masks("gate", None, [door], [], "ann"))
    masks = Masks(lambda _: record)
    masked = evidence("new", 100)
    masked.picture = True
    masked.masks.extend(masks.filmed("gate", 0).names)
    store.put(masked, None, b"masked")
    own = keeping(store, 200, masks=masks)
    kept = evidence("old", 100)
    kept.picture = True
    kept.clip.frames = 1
    assert (own.picture(kept), own.clip(kept)) == (None, None)
    piece = own.picture(masked)
    assert piece is not None
    assert piece.data == b"masked"
    own.sweep()
    assert stored(store) == {"old", "new"}


def test_an_erasure_takes_what_it_touches_and_halves(tmp_path: Path) -> None:
    store = KeptStore(str(tmp_path))
    store.put(evidence("before", 1000), b"clip", None)
    store.put(evidence("inside", 1020), b"clip", None)
    store.put(evidence("other", 1020, "yard"), b"clip", None)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / CLIP).write_bytes(b"clip")
    erasure = Erasure(id="e", camera="gate", begin_us=1015_000_000, end_us=1016_000_000)
    assert keeping(store, 2000).erase(erasure) == 2
    assert stored(store) == {"before", "other"}
    assert not list((tmp_path / "half").iterdir())


def test_another_gateways_evidence_goes_with_the_fence(tmp_path: Path) -> None:
    store = KeptStore(str(tmp_path))
    store.put(evidence("inside", 1020), b"clip", None)
    fence = Fence([Erasure(id="e", camera="gate", begin_us=0, end_us=1016_000_000)])
    guarded = keeping(store, 2000, fence)
    assert guarded.find("inside", lambda *_: True) is None
    guarded.sweep()
    assert stored(store) == set()


def test_a_receipt_counts_what_a_sweep_removed_first(tmp_path: Path) -> None:
    store = KeptStore(str(tmp_path))
    store.put(evidence("inside", 1020), b"clip", None)
    erasure = Erasure(id="e", camera="gate", begin_us=0, end_us=1016_000_000)
    guarded = keeping(store, 2000, Fence([erasure]))
    guarded.sweep()
    assert stored(store) == set()
    assert (guarded.erase(erasure), guarded.erase(erasure)) == (1, 0)


def test_names_of_incidents_lead_nowhere_else(tmp_path: Path) -> None:
    store = KeptStore(str(tmp_path / "kept"))
    store.put(evidence("ab12", 1000), b"clip", None)
    (tmp_path / "kept.json").write_bytes((tmp_path / "kept" / "ab12" / "kept.json").read_bytes())
    for name in ("..", "../kept/ab12", "ab12/", "", "a" * 65, "%2e%2e"):
        assert store.find(name) is None
    (tmp_path / "kept" / "ab12" / "kept.json").write_bytes(b"{")
    assert KeptStore(str(tmp_path / "kept")).find("ab12") is None


def test_a_store_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="LOOKOUT_KEEP_URL"):
        KeptStore(str(tmp_path / "file" / "folder"))
