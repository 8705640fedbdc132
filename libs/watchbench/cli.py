"""``watchbench``: render cameras, train the model, score it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

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
        int | None, typer.Option(help="A random scene of this kind by seed; else the scripted one.")
    ] = None,
    codec: Annotated[str, typer.Option(help="h264 or hevc.")] = "h264",
    gop: Annotated[float, typer.Option(help="Seconds between keyframes.")] = 2.0,
    phase: Annotated[float, typer.Option(help="Where in a group of pictures the film starts, 0 to 1.")] = 0.0,
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
    """Render the demo's films again, which are kept in the package, after a change."""
    from watchbench.cameras import make_films

    for path in make_films():
        print(path)


@app.command()
def train(
    name: Annotated[
        str, typer.Option(help="tolerant (static tokens dropped at times) or dense.")
    ] = "tolerant",
    folder: Annotated[
        Path, typer.Option(help="Folder of the progress; a stopped run continues from it.")
    ] = Path("out/train"),
    steps1: Annotated[int, typer.Option(help="Steps on single frames.")] = 6000,
    steps2: Annotated[int, typer.Option(help="Steps on windows and questions.")] = 8000,
    threads: Annotated[int, typer.Option(help="Threads for learning; drawing has one of its own.")] = 1,
    seed: Annotated[int, typer.Option(help="Another seed, another model.")] = 1,
    begin: Annotated[
        str | None, typer.Option(help="Begin with these weights: a committed name, or a checkpoint folder.")
    ] = None,
) -> None:
    """Train and install the result as committed weights; resumable; mixes in footage if there is any."""
    from watchbench import model as vlm
    from watchbench.training import Plan, Trainer

    if name not in ("tolerant", "dense"):
        raise typer.BadParameter(f"unknown kind {name!r}: tolerant or dense", param_hint="--name")
    where = _footage()
    plan = Plan(
        seed=seed,
        steps1=steps1,
        steps2=steps2,
        threads=threads,
        drop=0.5 if name == "tolerant" else 0.0,
        footage=where,
    )
    initial = None
    if begin is not None:
        try:
            initial = Path(begin) if Path(begin).is_dir() else vlm.weights(begin)
        except FileNotFoundError as error:
            raise typer.BadParameter(str(error), param_hint="--begin") from None
    trainer = Trainer(plan, folder / f"{name}-{seed}", initial)
    trainer.run()
    print(trainer.install(name))


@app.command()
def lengthen(
    name: Annotated[
        str, typer.Option(help="Committed weights that learn on, and are replaced.")
    ] = "tolerant",
    folder: Annotated[
        Path, typer.Option(help="Folder of the progress; a stopped run continues from it.")
    ] = Path("out/train"),
    steps: Annotated[int, typer.Option(help="Steps of 160 frames.")] = 2000,
    threads: Annotated[int, typer.Option(help="Threads for learning.")] = 1,
    seed: Annotated[int, typer.Option(help="Another seed, other clips.")] = 51,
    rate: Annotated[float, typer.Option(min=0, help="Rate of the language model.")] = 5e-4,
    chosen: Annotated[
        bool, typer.Option(help="Choose scenes with crowds, left objects, several vehicles, somebody lying.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Checkpoint folder to write to, instead of the committed weights."
        ),
    ] = None,
) -> None:
    """Teach the language model windows of 80 frames and retrieved history; the eye stays; resumable."""
    from watchbench import model as vlm
    from watchbench.long import LongPlan, LongTrainer

    initial, where = _committed(name), _footage()
    plan = LongPlan(
        seed=seed,
        steps=steps,
        short=0.45,
        threads=threads,
        drop=0.65 if name == "tolerant" else 0.0,
        footage=where,
        rate_text=rate,
        chosen=chosen,
    )
    card = json.loads((initial / "watchbench.json").read_text())
    trainer = LongTrainer(plan, folder / f"{name}-long-{seed}", initial)
    trainer.run()
    if output is None:
        print(trainer.install(name, card))
    else:
        vlm.save(trainer.averaged(), output, trainer.card(card))
        print(output)


@app.command()
def finetune(
    name: Annotated[
        str, typer.Option(help="Committed weights that learn on, and with --install are replaced.")
    ] = "tolerant",
    folder: Annotated[
        Path, typer.Option(help="Folder of the progress; a stopped run continues from it.")
    ] = Path("out/train"),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Checkpoint folder to write the running mean to.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of 160 frames.")] = 800,
    threads: Annotated[int, typer.Option(min=1, help="Threads for learning.")] = 1,
    seed: Annotated[int, typer.Option(help="Another seed, other clips.")] = 71,
    device: Annotated[str, typer.Option(help="Where losses and updates run: cpu, cuda, cuda:1.")] = "cpu",
    estimate: Annotated[
        bool, typer.Option(help="Print steps, FLOPs and minutes on an H100 as JSON, and learn nothing.")
    ] = False,
    install: Annotated[bool, typer.Option(help="Replace the committed weights at the end.")] = False,
) -> None:
    """Teach tower, projector and language model together under the product's masks; resumable."""
    import signal

    from watchbench import model as vlm
    from watchbench.finetune import FinetunePlan, Finetuner

    initial, where = _committed(name), _footage()
    plan = FinetunePlan(
        seed=seed,
        steps=steps,
        threads=threads,
        drop=FinetunePlan().drop if name == "tolerant" else 0.0,
        footage=where,
    )
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, _: stopped.append(got))
    card = json.loads((initial / "watchbench.json").read_text())
    try:
        trainer = Finetuner(plan, folder / f"{name}-finetune-{seed}", initial, _device(device))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--folder") from None
    if estimate:
        print(json.dumps(_on_h100(trainer.estimate())))
        return
    whole = trainer.run(lambda: bool(stopped))
    if output is not None:
        vlm.save(trainer.averaged(), output, trainer.card(card))
        print(output)
    if not whole:
        print(f"stopped after step {trainer.step} of {steps}; the same command continues")
    elif install:
        print(trainer.install(name, card))


H100_FLOPS, LAUNCH_S, UTILISATION = 67e12, 10e-6, 0.05
"""Float32 of an H100 SXM, a launch of a small kernel, and how much of it such small matrices use: assumed."""


def _on_h100(cost: dict[str, float]) -> dict[str, object]:
    """What training costs, with minutes on an H100 by what limits it; updates are as many launches again."""
    arithmetic = cost["flops"] / (H100_FLOPS * UTILISATION)
    launches = cost["steps"] * 2 * cost["operations_a_step"] * LAUNCH_S
    minutes = round(max(arithmetic, launches) / 60, 1)
    assumed = f"float32, {UTILISATION:.0%} of {H100_FLOPS:.0e} FLOP/s, {LAUNCH_S:g} s a launch; drawing apart"
    return cost | {"h100_minutes": minutes, "assumed": assumed}


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


def _committed(name: str) -> Path:
    from watchbench import model as vlm

    try:
        return vlm.weights(name)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error), param_hint="--name") from None


def _footage() -> str | None:
    """The folder of footage, which is printed."""
    from watchbench.footage import folder

    where = folder()
    print(f"footage: {where or 'none; rendered scenes alone'}")
    return str(where) if where else None


def main() -> None:
    """Entry point."""
    app()
