"""The options that commands share: one name, one meaning, one help text each. Defaults that differ say why there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from oneglance.core import DEFAULT_BUDGET
from oneglance.drafters import installed
from oneglance.runner import RUNNERS
from oneglance.tree import POLICIES


def listed(names: Iterable[str], last: str = "or") -> str:
    """Names of a registry as a help says them: ``a, b or c``."""
    *others, final = names
    return f"{', '.join(others)} {last} {final}" if others else final


BUILTIN = "builtin:reader"
BUDGET = DEFAULT_BUDGET
AUTO_BUDGET = str(BUDGET)  # where auto may stand as well
MAX_NEW_TOKENS = 256
LONG_SIDE = 768  # appendix D
MODEL, DECODING, SAMPLING, MACHINE, OUTPUT = "Model", "Decoding", "Sampling", "Machine", "Output"
DATA = "Data"

Target = Annotated[
    str, typer.Option(metavar="NAME", rich_help_panel=MODEL, help="builtin:reader, a folder, or a hub id.")
]
Head = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=MODEL,
        help="Weights of the drafter: a folder or a hub id; the built-in target brings its own block head.",
    ),
]
Drafter = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        rich_help_panel=MODEL,
        help=f"{listed(installed())}; settings may follow: ngram:max_ngram=4.",
    ),
]
Tree = Annotated[str, typer.Option(metavar="NAME", rich_help_panel=DECODING, help=f"{listed(POLICIES)}.")]
Budget = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=DECODING, help="Nodes of the candidate tree, root excluded.")
]
AutoBudget = Annotated[
    str,
    typer.Option(
        metavar="N|auto",
        rich_help_panel=DECODING,
        help="Nodes of the candidate tree, root excluded; auto: as many as pay here, measured once.",
    ),
]
BranchK = Annotated[
    int | None,
    typer.Option(
        metavar="K",
        rich_help_panel=DECODING,
        help="Ranks looked at per offset; default all that matter, or 64 with a rescorer.",
    ),
]
MaxNewTokens = Annotated[
    int, typer.Option(metavar="N", rich_help_panel=DECODING, help="Cap on new tokens, at least 0.")
]
Stop = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", rich_help_panel=DECODING, help="End before this text. Repeat for several."),
]
Temperature = Annotated[
    float, typer.Option(metavar="T", rich_help_panel=SAMPLING, help="0 is greedy; above, tokens are drawn.")
]
TopK = Annotated[int, typer.Option(metavar="K", rich_help_panel=SAMPLING, help="Draw from the K likeliest; 0 for all.")]
TopP = Annotated[float, typer.Option(metavar="P", rich_help_panel=SAMPLING, help="Draw from the likeliest of mass P.")]
MinP = Annotated[
    float,
    typer.Option(metavar="P", rich_help_panel=SAMPLING, help="Drop what is less than P times as likely as the best."),
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", rich_help_panel=SAMPLING, help="Seed of the draws; reported if not given.")
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(metavar="R", rich_help_panel=SAMPLING, help="Divides the logits of tokens seen, prompt included."),
]
FrequencyPenalty = Annotated[
    float, typer.Option(metavar="F", rich_help_panel=SAMPLING, help="Per occurrence in the answer so far, -2 to 2.")
]
PresencePenalty = Annotated[
    float, typer.Option(metavar="F", rich_help_panel=SAMPLING, help="For occurring in the answer so far, -2 to 2.")
]
LogitBias = Annotated[
    list[str] | None,
    typer.Option(metavar="ID:B", rich_help_panel=SAMPLING, help="Add B to the logit of token ID. Repeat for several."),
]
BadWord = Annotated[
    list[str] | None,
    typer.Option(metavar="TEXT", rich_help_panel=SAMPLING, help="Never write this. Repeat for several."),
]
MinNewTokens = Annotated[
    int | None, typer.Option(metavar="N", rich_help_panel=SAMPLING, help="No end before this many tokens.")
]
JsonSchema = Annotated[
    str | None,
    typer.Option(metavar="FILE|JSON", rich_help_panel=SAMPLING, help="The answer is JSON of this schema ([grammar])."),
]
Regex = Annotated[
    str | None, typer.Option(metavar="REGEX", rich_help_panel=SAMPLING, help="The answer matches this ([grammar]).")
]
Logprobs = Annotated[
    int | None,
    typer.Option(metavar="K", rich_help_panel=OUTPUT, help="With --json: log-probabilities, and of the K likeliest."),
]
Gate = Annotated[
    str,
    typer.Option(
        metavar="δ|FILE|off",
        rich_help_panel=DECODING,
        help="Leave choices with a margin under δ (logits) to a single step; FILE is from calibrate-gate.",
    ),
]
System = Annotated[str | None, typer.Option(metavar="TEXT", rich_help_panel=DECODING, help="System prompt.")]
Dtype = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        rich_help_panel=MACHINE,
        help="auto (as stored), float32, bfloat16, float16 or float64; float32 is exact.",
    ),
]
Device = Annotated[
    str | None, typer.Option(metavar="NAME", rich_help_panel=MACHINE, help="cpu, cuda, mps, …; default cpu.")
]
DeviceMap = Annotated[
    str | None,
    typer.Option(metavar="MAP", rich_help_panel=MACHINE, help="Spread the target over devices: auto (accelerate)."),
]
Attention = Annotated[str, typer.Option(metavar="NAME", rich_help_panel=MACHINE, help="sdpa or eager.")]
Threads = Annotated[
    int | None, typer.Option(metavar="N", min=1, rich_help_panel=MACHINE, help="CPU threads; default as torch decides.")
]
Runner = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        rich_help_panel=MACHINE,
        help=f"How packed passes run: {listed([*RUNNERS, 'auto (eager)'])}.",
    ),
]
PrefixCache = Annotated[
    int,
    typer.Option(
        "--prefix-cache-mb",
        metavar="N",
        min=0,
        rich_help_panel=MACHINE,
        help="Memory, in MiB, for prompts and answers that later ones begin with; 0 reuses none.",
    ),
]
FixedShape = Annotated[
    bool,
    typer.Option(
        "--fixed-shape",
        rich_help_panel=MACHINE,
        help="Plain and drafted passes in one shape, so that tokens are equal in bfloat16 too (slower).",
    ),
]
Images = Annotated[
    list[str] | None,
    typer.Option("--image", metavar="PATH", help="A page or photo: a path, URL or data URI. Repeat for several."),
]
ImagesFolder = Annotated[Path, typer.Option("--images", metavar="FOLDER", help="Pictures, subfolders included.")]
Audio = Annotated[
    str | None,
    typer.Option(
        "--audio", metavar="FILE", help="A WAV file for a speech target; PROMPT is then what was said before."
    ),
]
# --prompts names a file of prompts; where a command proves something it may count held-out ones of the suite instead. A
# number is no such file, and a file no number, so that neither is ever taken for the other
AnyPrompts = Annotated[
    str,
    typer.Option(
        "--prompts",
        metavar="N|FILE",
        rich_help_panel=DATA,
        help="So many held-out prompts, the tasks in turn, or your own: JSONL as 'bench --prompts' takes it.",
    ),
]
Prompts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=DATA,
        help='JSONL: {"prompt", "image" or "images", "audio", "id", "task", "system"} a line; only prompt is required.',
    ),
]
Tasks = Annotated[
    str | None,
    typer.Option(
        "--tasks", metavar="NAMES", rich_help_panel=DATA, help="Tasks of the built-in suite, comma-separated, or all."
    ),
]
LongSide = Annotated[
    int,
    typer.Option(metavar="PX", min=0, rich_help_panel=DATA, help="Scale images down to this long side; 0 leaves them."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Estimate from a few samples what it will take, and stop.")]
TracesFolder = Annotated[
    Path, typer.Option("--traces", metavar="FOLDER", rich_help_panel=DATA, help="Traces that 'collect' wrote.")
]
Json = Annotated[bool, typer.Option("--json", rich_help_panel=OUTPUT, help="One JSON object on stdout, nothing else.")]
