"""``oneglance train``: a draft head from traces, by a recipe."""

from __future__ import annotations

import warnings
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from oneglance.amounts import parameters, plural, size
from oneglance.commands import opening, options, terminal
from oneglance.core import InputError, OneglanceWarning
from oneglance.files import check_free

if TYPE_CHECKING:
    from oneglance.train.trainer import HeadTrainer, Progress

SHOWN_OFFSETS = (1, 2, 4, 8, 15)
FEW_SAMPLES = 50
Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML file; recipes/ holds the paper's.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="Changes to the recipe.")]
Out = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Run folder; default runs/ and the recipe's name.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint, if there is one.")]
Tracker = Annotated[
    list[str] | None,
    typer.Option("--tracker", metavar="NAME", help="Also log to a tracker of accelerate, such as tensorboard."),
]


def train(
    recipe: Recipe,
    overrides: Overrides = None,
    out: Out = None,
    resume: Resume = False,
    tracker: Tracker = None,
    device: options.Device = None,
    threads: options.Threads = None,
    json: options.Json = False,
) -> None:
    """Train a draft head on traces. Only the head learns; the target stays as it is.

    The final head goes to FOLDER/head, checkpoints and log.jsonl beside it. A killed run goes on with --resume, on the
    curve that it would have had. On several GPUs: accelerate launch -m oneglance.train RECIPE, with a config of
    recipes/accelerate (DDP or FSDP). In several CPU processes: torchrun --nproc-per-node 2 -m oneglance.train RECIPE
    --device cpu.
    """
    from oneglance.train.recipe import load_recipe

    plan = load_recipe(recipe, overrides or [])
    opening.set_threads(threads)
    state = process_state(device)
    from oneglance.targets import open_target
    from oneglance.train.runlog import check_run
    from oneglance.train.trainer import HeadTrainer

    folder = out or Path("runs") / plan.name
    if state.is_main_process:
        check_run(folder, plan, resume=resume)
        check_free(folder)
    target = open_target(plan.target, dtype=plan.target_dtype, device=device or str(state.device))
    trainer = HeadTrainer(plan, target, folder, trackers=tracker or ())
    console = Console(
        stderr=True, highlight=False, soft_wrap=True, markup=False, quiet=json or not state.is_main_process
    )
    memory = introduce(trainer, console)
    if resume and not trainer.checkpoints.steps():
        console.print(f"{folder} has no checkpoint to resume from: the run starts anew")
    reports = follow(trainer, console, resume=resume)
    if not state.is_main_process:
        return
    result = {"out": str(folder), "head": str(folder / "head"), "memory_bytes": memory, **outcome(trainer, reports)}
    if json:
        terminal.write_json(result)
    else:
        rate = f"{result['samples_per_s']:.1f} samples/s, " if result["samples_per_s"] else ""
        taken = f"{rate}{size(result['peak_memory_bytes'])} at the peak"
        print(terminal.visible(f"head after {plural(trainer.num_steps, 'step')} in {folder / 'head'}; {taken}"))


def process_state(device: str | None) -> Any:
    """This process among the training processes, and its device.

    Raises:
        InputError: accelerate is not installed, or its config asks for what training does not do.
    """
    try:
        import accelerate  # noqa: F401
    except ImportError as error:
        raise InputError("training needs accelerate; install it with: pip install 'oneglance[train]'") from error
    from oneglance.train import processes

    return processes.process_state(cpu=device == "cpu")


def introduce(trainer: HeadTrainer, console: Console, *, with_memory: bool = True) -> int:
    """Say what is about to be trained and what memory it will take; the bytes besides the target."""
    from oneglance.train.features import check_disk
    from oneglance.train.memory import training_memory

    config, num_samples = trainer.config, len(trainer.train_rows)
    console.print(
        f"{trainer.recipe.kind} of {parameters(trainer.num_parameters)}, {plural(config.num_offsets, 'offset')}, kept "
        f"layers {', '.join(map(str, config.target_layer_ids))}; "
        f"{num_samples} training and {plural(len(trainer.heldout_rows), 'held-out sample')}, "
        f"{plural(trainer.num_steps, 'step')}"
    )
    console.print(_processes(trainer))
    if trainer.recipe.init:
        console.print(f"warm start from {trainer.recipe.init}: {_anew(trainer.reinitialised)}{_unscored(trainer)}")
    memory = training_memory(
        trainer.recipe,
        trainer.target,
        config,
        trainer.train_rows,
        parameters=trainer.num_parameters,
        shards=trainer.num_shards,
    )
    if with_memory:
        console.print(memory.line())
    if memory.disk:
        console.print(f"features on disk: about {size(memory.disk)} in {trainer.out / 'features'}")
        check_disk(trainer.out / "features", memory.disk)
    few = f"{plural(num_samples, 'training sample')}: a head learns so few by heart; good ones had thousands"
    for advice in (memory.advice(), few if num_samples < FEW_SAMPLES else None):
        if advice and trainer.accelerator.is_main_process:
            warnings.warn(advice, OneglanceWarning, stacklevel=2)
    return memory.needed


def follow(trainer: HeadTrainer, console: Console, *, resume: bool, again: str = "--resume") -> list[Progress]:
    """Train to the end: a line a report, and a bar on a terminal.

    Args:
        trainer: not begun yet.
        console: for people.
        resume: go on from the newest checkpoint.
        again: what goes on with a run that is interrupted.
    """
    reports, saved = [], trainer.checkpoints.steps()
    done = saved[-1] if resume and saved else 0
    pulse = terminal.Pulse(trainer.num_steps, "steps", done=done, show=not console.quiet)
    if resume and saved:
        console.print(f"goes on after step {saved[-1]} of {trainer.num_steps}")
    with terminal.told(lambda: stopped(trainer, again)), terminal.bar(show=not console.quiet, console=console) as bar:
        task = bar.add_task("training", total=trainer.num_steps)
        for progress in trainer.run(resume=resume):
            reports.append(progress)
            bar.update(task, completed=progress.step, description=f"loss {progress.loss:.3f}")
            for line in lines(progress):
                console.print(line)
            pulse.beat(progress.step)
    return reports


def stopped(trainer: HeadTrainer, again: str) -> str:
    """What an interrupted run leaves."""
    saved = trainer.checkpoints.steps()
    after = f"stopped after step {trainer.done} of {trainer.num_steps}"
    return f"{after}; {again} goes on after step {saved[-1]}" if saved else f"{after}; no checkpoint was saved yet"


def lines(progress: Progress) -> list[str]:
    """A report, for people."""
    head = f"step {progress.step}/{progress.num_steps}"
    found = []
    if progress.step:
        top1 = at_offsets(progress.top1)
        found.append(f"{head}: loss {progress.loss:.4f}, top-1 {top1}, {progress.samples_per_s:.1f} samples/s")
    if progress.heldout is not None:
        before = "" if progress.step else ", before training"
        found.append(f"{head}: held-out top-1 {at_offsets(progress.heldout.top1)}{before}")
    if progress.tau:
        found.append(f"{head}: τ " + ", ".join(f"{task} {tau:.2f}" for task, tau in sorted(progress.tau.items())))
    return found


def at_offsets(top1: list[float]) -> str:
    """Accuracies at a few offsets."""
    return " ".join(f"@{k} {top1[k - 1]:.3f}" for k in SHOWN_OFFSETS if k <= len(top1))


def outcome(trainer: HeadTrainer, reports: list[Progress]) -> dict[str, Any]:
    """The JSON object of a run. Samples a second are the median over reports, which leave evaluation out."""
    from oneglance.train.memory import peak_bytes

    heldout = [report for report in reports if report.heldout is not None]
    zero_shot = next((report for report in heldout if report.step == 0), None)
    last = heldout[-1] if heldout else None
    rates = [report.samples_per_s for report in reports if report.step]
    return {
        "steps": trainer.num_steps,
        "loss": reports[-1].loss if reports else None,
        "heldout_top1": last.heldout.top1 if last and last.heldout else None,
        "tau": last.tau if last else None,
        "zero_shot_tau": zero_shot.tau if zero_shot and not trainer.reinitialised else None,
        "reinitialised": trainer.reinitialised,
        "samples_per_s": median(rates) if rates else None,
        "peak_memory_bytes": peak_bytes(trainer.target.device),
    }


def _processes(trainer: HeadTrainer) -> str:
    count, optimiser = trainer.accelerator.num_processes, trainer.recipe.optimiser
    samples = optimiser.batch_size * optimiser.accumulate * count
    kind = "" if count == 1 else " under FSDP" if trainer.num_shards > 1 else " under DDP"
    return f"{plural(count, 'process', 'processes')}{kind}, global batch {samples}"


def _unscored(trainer: HeadTrainer) -> str:
    """Why no τ of the warm start as it is will be reported, if none will."""
    if trainer.reinitialised:
        return "; so what is scored before training is not zero-shot"
    if not trainer.heldout_rows:
        return "; no zero-shot τ: data.heldout names no traces"
    return "" if trainer.recipe.schedule.tau_prompts else "; no zero-shot τ: schedule.tau_prompts is 0"


def _anew(names: list[str]) -> str:

    if not names:
        return "every tensor fits"
    verb = "does not fit and is" if len(names) == 1 else "do not fit and are"
    return f"{plural(len(names), 'tensor')} {verb} initialised anew: {', '.join(names)}"
