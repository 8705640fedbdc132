"""Logs of clients that repeat themselves."""

from __future__ import annotations

import logging

from lookout.observe import logs


def test_a_client_that_repeats_itself_is_heard_once() -> None:
    quiet = logs.Quiet(60.0)
    said = [logging.LogRecord("kafka", 40, "", 0, "FAIL [%s] again", (n,), None) for n in range(5)]
    assert [quiet.filter(each) for each in said] == [True, False, False, False, False]
    assert quiet.filter(logging.LogRecord("kafka", 30, "", 0, "SESSTMOUT", None, None))
