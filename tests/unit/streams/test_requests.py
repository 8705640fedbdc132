"""Requests to a decoder come from one place, which the image of decode can import."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from lookout.pruning import GatherMethod, GatherSettings
from lookout.streams import decode_request
from lookout.video.segments import Expected, Tail

ROOT = Path(__file__).parents[3]
#: the probe of a GPU's decoder
OTHERS = {"libs/lookout/video/segments/nvdec.py"}


def test_vectors_are_read_where_they_are_gathered() -> None:
    plain = decode_request(112, 112)
    assert (plain.gather, plain.vectors, plain.tail) == (None, False, Tail.KEEP)
    gathered = decode_request(112, 112, gather=GatherSettings(8, 8, 14, GatherMethod.UNION))
    assert gathered.vectors
    assert gathered.gather is not None


def test_a_segment_that_begins_a_stream_is_sampled_from_its_start() -> None:
    expected = Expected(epoch_us=0, next_us=2_000_000, early_us=0, late_us=0)
    assert decode_request(112, 112, first_slot=4).first_slot == 0
    assert decode_request(112, 112, first_slot=4, expected=expected).first_slot == 4


def test_no_other_place_puts_one_together() -> None:
    files = {
        str(path.relative_to(ROOT))
        for folder in ("libs", "services")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"(return|=) DecodeRequest\(", path.read_text())
    }
    assert files == {"libs/lookout/streams/requests.py", *OTHERS}


def test_it_needs_no_torch() -> None:
    code = "import sys; from lookout.streams import decode_request; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
