"""``oneglance doctor``: this machine, a target and its head, and what to do next."""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass, field
from shlex import quote
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from oneglance.commands import options, terminal
from oneglance.commands.demo import CHART, PAGE, short
from oneglance.commands.opening import open_decoder, read_images, sampling, set_threads
from oneglance.core import HeadError

if TYPE_CHECKING:
    from oneglance.commands.environment import Check
    from oneglance.commands.pairs import Comparison, Duel
    from oneglance.core import Generation
    from oneglance.decoder import Decoder

LOW_TAU = 1.3  # below it a head drafts next to nothing
PAIRS, SECONDS, MAX_NEW_TOKENS = 3, 6.0, 64
PROMPTS = (("Transcribe the document.", PAGE), ("List the chart values.", CHART))
TEXT_PROMPT = "Write the numbers from one to forty in words, separated by commas."
HELP = "docs/troubleshooting.md"  # in the repository
MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "fail": ("FAIL", "bold red")}
FEW_ANSWERS = 16_000  # the paper's heads saw as many at least
CAUSES = (
    "The head was made for another target, another fine-tune of it or another quantisation: compare its card with "
    "`oneglance inspect TARGET HEAD`.",
    "It reads features of other layers than it was trained on: some code counts layers from 1.",
    "Its training prompts looked different: another chat template, thinking mode on or off, another system prompt.",
    "It was trained on answers that are not this target's own greedy ones: true answers, another model's, or sampled.",
    "The answers are open or short: where many continuations are right, or one letter is the whole answer, there is "
    "little to accept.",
)
IMAGE_CAUSES = (
    "It reads features at another point of a layer than it was trained on: some code takes the state before the "
    "DeepStack add, which differs at an image's rows.",
    "It was trained on text alone and the prompt is an image: it works zero-shot, but accepts less.",
)


@dataclass
class Trial:
    """One prompt, decoded by both arms."""

    prompt: str
    duel: Duel
    comparison: Comparison

    def as_dict(self) -> dict[str, Any]:
        return {"prompt": self.prompt, **self.comparison.as_dict()}


@dataclass
class Diagnosis:
    """What the doctor found.

    Attributes:
        is_well: nothing failed.
        verdict: one sentence.
        next: the command to run next.
        causes: why acceptance may be low, likeliest first; empty where it is not.
        page: where to read on, a section of ``HELP``; None where nothing is amiss with the two.
    """

    is_well: bool
    verdict: str
    next: str
    causes: list[str] = field(default_factory=list)
    page: str | None = None


def doctor(
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    json: options.Json = False,
) -> None:
    """Check this machine, a target and its draft head.

    Versions, devices and number formats, then a few prompts decoded plainly and with the head, and a verdict with the
    command to run next. Takes half a minute with the built-in target, which runs in float32 unless --dtype says
    otherwise. Exits with 1 if something is wrong; a head that drafts next to nothing counts, and its likely causes are
    listed.
    """
    set_threads(threads)
    from oneglance.commands.environment import environment

    console = None if json else Console(highlight=False)
    checks = environment(device or "cpu")
    if console:
        console.print(findings(checks))
    if target == options.BUILTIN and dtype == "auto":
        dtype = "float32"
    try:
        decoder = open_decoder(
            target,
            head,
            budget=options.BUDGET,
            dtype=dtype,
            device=device,
            device_map=device_map,
            attention=attention,
            runner=runner,
        )
    except HeadError as error:
        raise HeadError(f"{error}; read {HELP}#a-mismatch-is-refused") from error
    trials = [run_trial(decoder, prompt, image) for prompt, image in prompts_for(decoder)]
    diagnosis = diagnose(checks, decoder, trials, head=head or target)
    if console:
        show(console, decoder, trials, diagnosis)
    else:
        terminal.write_json(as_dict(checks, decoder, trials, diagnosis))
    if not diagnosis.is_well:
        raise typer.Exit(1)


def prompts_for(decoder: Decoder) -> list[tuple[str, str | None]]:
    """Prompts that the target should have something to say to."""
    if decoder.target.name == options.BUILTIN:
        return [(prompt, str(page)) for prompt, page in PROMPTS]
    pages = [(PROMPTS[0][0], str(PAGE))] if decoder.target.takes_images else []
    return [*pages, (TEXT_PROMPT, None)]


def run_trial(decoder: Decoder, prompt: str, image: str | None) -> Trial:
    """Decode one prompt in pairs, after a warm-up."""
    from oneglance.commands.pairs import Duel
    from oneglance.targets.chat import encode

    inputs = encode(decoder.target, prompt, images=read_images([image] if image else []))
    duel = Duel(decoder, inputs, sampling(MAX_NEW_TOKENS))
    duel.pair(0)
    return Trial(prompt, duel, duel.compare(PAIRS, seconds=SECONDS))


def kept(trials: list[Trial]) -> list[int]:
    """Kept tokens of every round."""
    return kept_of([trial.comparison.drafted for trial in trials])


def kept_of(answers: list[Generation]) -> list[int]:
    """Kept tokens of every round of these answers."""
    return [len(done.token_ids) for answer in answers for done in answer.rounds]


def mean_tau(trials: list[Trial]) -> float:
    """Kept tokens a round, over all rounds; 1 where there was none."""
    return statistics.fmean(kept(trials) or [1])


def is_more(one: list[int], other: list[int]) -> bool:
    """Whether rounds keep clearly more than others: by a fifth, and by twice the standard error of the difference."""
    if min(len(one), len(other)) < 2:
        return False
    noise = math.sqrt(sum(statistics.variance(rounds) / len(rounds) for rounds in (one, other)))
    ahead, behind = statistics.fmean(one), statistics.fmean(other)
    return ahead > max(1.2 * behind, behind + 2 * noise)


def mean_speedup(trials: list[Trial]) -> float | None:
    """Mean over the prompts of the median ratio."""
    medians = [trial.comparison.speedup.median for trial in trials if trial.comparison.speedup]
    return sum(medians) / len(medians) if medians else None


def diagnose(checks: list[Check], decoder: Decoder, trials: list[Trial], *, head: str) -> Diagnosis:
    """From findings to a verdict and the next command."""
    target, tau, speedup = decoder.target.name, mean_tau(trials), mean_speedup(trials)
    names = ("" if target == options.BUILTIN else f" --target {target}") + ("" if head == target else f" --head {head}")
    fallen = [trial.comparison.drafted.fell_back for trial in trials if trial.comparison.drafted.fell_back]
    failed = [check for check in checks if check.status == "fail"]
    is_exact = all(trial.comparison.is_identical for trial in trials)
    is_judged = str(decoder.target.dtype) in ("torch.float32", "torch.float64")
    if not is_exact and is_judged:
        return Diagnosis(
            False,
            "Output differs from plain decoding in float32: a tie of two logits, or a bug; an audit tells them apart.",
            f"oneglance audit --prompts 50 --dtype float32{names}",
            page=f"{HELP}#the-text-differs-from-another-programs",
        )
    if fallen:
        return Diagnosis(
            False,
            f"Drafting ends early: {fallen[0]}.",
            f"oneglance inspect {target} {head}",
            page=f"{HELP}#drafting-ends-early",
        )
    if tau < LOW_TAU:
        verdict = f"The head drafts next to nothing here: τ {tau:.2f}, of which 1 is the target's own token."
        causes, page = likely_causes(decoder, trials, head), f"{HELP}#few-tokens-a-round"
        return Diagnosis(False, verdict, f"oneglance inspect {target} {head}", causes, page)
    if failed:
        return Diagnosis(False, f"{failed[0].name}: {failed[0].detail}.", "oneglance doctor")
    words = "" if is_exact else " Answers differ in this dtype, as two kernels of one model do; float32 judges."
    if speedup is not None and speedup < 1:
        verdict = f"It works, but does not pay here: {speedup:.2f} times plain decoding's speed at τ {tau:.2f}.{words}"
        causes, page = likely_causes(decoder, trials, head), f"{HELP}#it-is-slower-than-plain-decoding"
        return Diagnosis(True, verdict, f"oneglance demo --budget 15 --dtype float32{names}", causes, page)
    pace = f"{speedup:.1f} times plain decoding's speed, " if speedup else ""
    verdict = f"It works: {pace}τ {tau:.2f}{', same tokens' if is_exact else ''}.{words}"
    return Diagnosis(True, verdict, f'oneglance generate --image {quote(short(str(PAGE)))} "{PROMPTS[0][0]}"{names}')


def likely_causes(decoder: Decoder, trials: list[Trial], head: str) -> list[str]:
    """Why a head drafts next to nothing: what can be measured first, then what cannot."""
    from oneglance.commands.inspect import compatibility
    from oneglance.drafters.checkpoint import load_checkpoint
    from oneglance.train.card import Training

    checkpoint = load_checkpoint(head)
    measured = [f"{note[0].upper()}{note[1:]}." for note in compatibility(checkpoint, decoder.target)["notes"]]
    for shift in (-1, 1):
        rounds = shifted(decoder, trials[0], head, shift)
        if rounds and statistics.fmean(rounds) > LOW_TAU and is_more(rounds, kept(trials[:1])):
            layers = [i + shift for i in checkpoint.config.target_layer_ids]
            measured.append(
                f"Its kept layers are off by one: with {layers} τ is {statistics.fmean(rounds):.2f}, and "
                f"{mean_tau(trials[:1]):.2f} as it is; correct its target_layer_ids."
            )
    pages, texts = (
        [trial for trial in trials if (trial.duel.inputs.num_images > 0) is has_page] for has_page in (True, False)
    )
    if mean_tau(texts) > LOW_TAU > mean_tau(pages) and is_more(kept(texts), kept(pages)):
        measured.append(
            f"It drafts better for text (τ {mean_tau(texts):.2f}) than for images (τ {mean_tau(pages):.2f}), each on "
            "one prompt: it may have been trained on text alone."
        )
    said = Training.of(checkpoint.card)
    if said.samples is not None and said.samples < FEW_ANSWERS:
        measured.append(f"It was trained little: {said.amount}, where the paper's heads saw {FEW_ANSWERS:,} and more.")
    return [*measured, *CAUSES, *(IMAGE_CAUSES if decoder.target.takes_images else ())]


def shifted(decoder: Decoder, trial: Trial, head: str, shift: int) -> list[int] | None:
    """Kept tokens a round with all kept layers moved by ``shift``; None where the target has no such layers."""
    from oneglance.decoder import Decoder
    from oneglance.drafters.block import BlockDrafter
    from oneglance.drafters.checkpoint import load_checkpoint, read_config
    from oneglance.drafters.rescorer import find_rescorer

    checkpoint, rescorer = load_checkpoint(head), find_rescorer("auto", read_config(head)[0])
    layers = tuple(i + shift for i in checkpoint.config.target_layer_ids)
    config = checkpoint.config.model_copy(update={"target_layer_ids": layers})
    try:
        moved = dataclasses.replace(checkpoint, config=config)
        drafter = BlockDrafter.bind(moved, decoder.target, rescorer=rescorer)
    except HeadError:
        return None
    return kept_of([Decoder(decoder.target, drafter).stream_inputs(trial.duel.inputs, trial.duel.params).exhaust()])


# Output -------------------------------------------------------------------------------------------------------------


def as_dict(checks: list[Check], decoder: Decoder, trials: list[Trial], diagnosis: Diagnosis) -> dict[str, Any]:
    """The JSON object of ``oneglance doctor --json``."""
    return {
        "ok": diagnosis.is_well,
        "verdict": diagnosis.verdict,
        "next": diagnosis.next,
        "causes": diagnosis.causes,
        "page": diagnosis.page,
        "checks": [dataclasses.asdict(check) for check in checks],
        "target": decoder.target.name,
        "head": decoder.drafter.name,
        "dtype": str(decoder.target.dtype).removeprefix("torch."),
        "tau": mean_tau(trials),
        "speedup": mean_speedup(trials),
        "identical": all(trial.comparison.is_identical for trial in trials),
        "trials": [trial.as_dict() for trial in trials],
    }


def findings(checks: list[Check]) -> Table:
    """The environment."""
    grid = Table(show_header=False, box=None, pad_edge=False)
    for check in checks:
        grid.add_row(Text(*MARKS[check.status]), Text(check.name, "bold"), Text(check.detail))
    return grid


def show(console: Console, decoder: Decoder, trials: list[Trial], diagnosis: Diagnosis) -> None:
    """What was decoded, and the verdict."""
    names = ("tokens", "τ", "plain", "drafted", "speedup", "same")
    columns = [Column(name, justify="right", no_wrap=True) for name in names]
    grid = Table("prompt", *columns, box=box.SIMPLE_HEAD)
    for trial in trials:
        pair = trial.comparison
        plain, drafted = (spread.median if spread else float("nan") for spread in map(pair.ms_per_token, (0, 1)))
        grid.add_row(
            Text(trial.prompt),
            str(pair.drafted.num_tokens),
            f"{mean_tau([trial]):.2f}",
            f"{plain:.2f}",
            f"{drafted:.2f}",
            str(pair.speedup or "–"),
            "yes" if pair.is_identical else "NO",
        )
    console.print(grid)
    dtype = str(decoder.target.dtype).removeprefix("torch.")
    setting = f"{decoder.target.name}, {dtype}, {decoder.target.device}; plain and drafted in ms/token"
    console.print(Text(terminal.visible(setting), style="dim"))
    console.print(Text(f"\n{terminal.visible(diagnosis.verdict)}", "bold green" if diagnosis.is_well else "bold red"))
    if diagnosis.causes:
        causes = Table("", "", show_header=False, box=None, pad_edge=False)
        for number, cause in enumerate(diagnosis.causes, start=1):
            causes.add_row(f"{number}.", Text(terminal.visible(cause)))
        console.print("\nLikely causes:", causes, sep="\n")
    if diagnosis.page:
        console.print(f"\nRead: {diagnosis.page}", soft_wrap=True)
    console.print(Text.assemble("\nNext: ", (terminal.visible(diagnosis.next), "bold")), soft_wrap=True)
