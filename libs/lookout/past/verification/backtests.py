"""Back-tests a question on what a fleet's cameras saw, read from Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lookout.models import listed_questions
from lookout.past.backtests import Backtest, PastWindows
from lookout.past.verification.fleet import fleet_replay
from lookout.rules import messages
from lookout.streams.chains import EpochRecords, PastScope, read_epochs
from lookout.v1.labels_pb2 import Label
from lookout.v1.watches_pb2 import Watch


def fleet_backtest(
    model: Path,
    bootstrap: str,
    watch: Watch,
    scope: PastScope,
    *,
    common: Mapping[str, Any] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    labels: Sequence[Label] = (),
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Backtest:
    """Ask a question about the windows in scope, and return the incidents that its rule would have opened.

    Args:
        model: Folder of the fleet's model.
        bootstrap: Addresses of the Kafka brokers.
        watch: The question and its rule.
        scope: Which cameras and windows to ask about.
        common: Settings of the whole fleet that differ from the defaults.
        own: Settings of single services that differ from the defaults, by service name.
        labels: People's labels of incidents of these cameras.
        progress: Called with the number of windows done and their total.

    Raises:
        LookoutError: The settings or the model cannot be used.
        TimeoutError: A topic cannot be read to its end.
    """
    backtest = Backtest(messages.rule_of(watch.rule, watch.question), labels, timeline={})
    # Exited last: time counts from the loaded model until the decoder processes have ended.
    with ExitStack() as measured, fleet_replay(model, bootstrap, common, own) as fleet:
        settings = fleet.settings
        measured.enter_context(backtest.measured(settings.device))
        reach_s = (settings.windows.longest_chain + settings.window_blocks) * settings.stride_s
        epochs = read_epochs(settings, scope, reach_s)
        listed = listed_questions(model)
        windows = PastWindows(settings, fleet.engine, fleet.planner, fleet.load, fleet.model_digest, listed)
        total, replayed = sum(len(_inside(epoch, scope)) for epoch in epochs), 0
        for epoch in epochs:
            for past in windows.verdicts(epoch, watch, scope):
                past.add_cost(backtest.cost)
                backtest.take(past.verdict, expired=past.expired)
                replayed += 1
                progress(min(replayed, total), total)
    return backtest


def _inside(epoch: EpochRecords, scope: PastScope) -> list[int]:
    return [index for index in epoch.blocks if scope.includes(epoch.camera, epoch.end_ms(index))]
