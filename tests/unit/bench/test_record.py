"""What a result says of the command that made it."""

from __future__ import annotations

from bench.record import told


def test_the_folder_of_kept_work_is_left_out_of_the_command() -> None:
    assert told(["--cameras", "40", "--keep", "/anywhere", "--share", ".06"]) == [
        "--cameras",
        "40",
        "--share",
        ".06",
    ]
    assert told(["--only", "flops"]) == ["--only", "flops"]
