"""What commands print while something is done."""

from __future__ import annotations

import io

from lookout.cli.output import TerminalConsole, stage


def test_a_stage_is_a_line_where_nothing_can_move() -> None:
    file = io.StringIO()
    console = TerminalConsole(file=file, force_terminal=False)
    with stage(console, "starting the [fleet]"):
        assert file.getvalue() == "starting the [fleet] ...\n"
    assert file.getvalue() == "starting the [fleet] ...\n"


def test_a_stage_leaves_nothing_at_a_terminal() -> None:
    file = io.StringIO()
    console = TerminalConsole(file=file, force_terminal=True, width=80)
    with stage(console, "starting the fleet"):
        pass
    assert "starting the fleet ...\n" not in file.getvalue()
