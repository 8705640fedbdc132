"""A question on what the cameras of a fleet saw, out of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lookout.backtest import Backtest, PastWindows
from lookout.chains import EpochRecords, PastScope, read_epochs
from lookout.rules import messages
from lookout.v1.watches_pb2 import Watch
from lookout.verification.fleet import fleet_replay


def fleet_backtest(
    model: Path,
    bootstrap: str,
    watch: Watch,
    scope: PastScope,
    *,
    common: Mapping[str, Any] | None = None,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Backtest:
    """Ask a question of the windows in scope, and follow its rule.

    Args:
        model: Folder of the fleet's model.
        bootstrap: Kafka.
        watch: The question and its rule.
        scope: Which cameras and windows.
        common: Settings of the fleet that are not the defaults.
        own: Settings of one service, by its name.
        progress: Called with the windows done and their number.

    Raises:
        LookoutError: The settings or the model cannot be used.
        TimeoutError: A topic cannot be read to its end.
    """
    backtest = Backtest(messages.rule_of(watch.rule), timeline={})
    with fleet_replay(model, bootstrap, common, own) as fleet:
        settings = fleet.settings
        reach_s = (settings.windows.longest_chain + settings.window_blocks) * settings.stride_s
        epochs = read_epochs(settings, scope, reach_s)
        windows = PastWindows(settings, fleet.engine, fleet.planner, fleet.load, fleet.model_digest)
        total, replayed = sum(len(_inside(epoch, scope)) for epoch in epochs), 0
        for epoch in epochs:
            for past in windows.verdicts(epoch, watch, scope):
                cost = past.verdict.cost
                backtest.computed_flops += past.computed_flops
                if past.verdict.HasField("p_yes"):
                    backtest.window_flops += cost.flops_vision + cost.flops_prefill
                    backtest.question_flops += cost.flops_question
                    backtest.dense_flops += cost.flops_dense + cost.flops_question
                if past.expired:
                    backtest.outcomes["expired"] += 1
                else:
                    backtest.add(messages.verdict_of(past.verdict, backtest.rule))
                replayed += 1
                progress(min(replayed, total), total)
    return backtest


def _inside(epoch: EpochRecords, scope: PastScope) -> list[int]:
    return [index for index in epoch.blocks if scope.includes(epoch.camera, epoch.end_ms(index))]
