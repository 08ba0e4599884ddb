"""One voice over all commands: an option has one help, metavar, panel and default; messages read alike."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from oneglance import cli
from oneglance.drafters import DRAFTERS
from oneglance.engines import ENGINES
from oneglance.runner import RUNNERS
from oneglance.tree import POLICIES

SRC = Path(cli.__file__).parent

# (option, command) → why its words are its own
OWN_WORDS = {
    ("--out", "*"): "each says what it writes, and whether that is a file or a folder",
    ("--limit", "worth-it"): "counts prompts of one's own pictures, not prompts a task",
    ("--limit", "collect"): "counts pages a task, or lines of a file",
    ("--limit", "eval-head"): "counts traces",
    ("--limit", "fit-head"): "counts pictures",
    ("--prompts", "audit"): "may be a number of the suite's prompts: see options.AnyPrompts",
    ("--prompts", "calibrate-gate"): "may be a number of the suite's prompts: see options.AnyPrompts",
    ("--prompts", "worth-it"): "plain questions, which take turns over the pictures",
    ("--prompts", "fit-head"): "plain questions, each for each picture",
    ("--prompt", "run"): "a line of a JSONL file may have its own",
    ("--budget", "law"): "no tree is made: the ceiling of Fig. 4 is drawn for that many nodes",
    ("--budgets", "width"): "mean nodes a round, when logs are replayed",
    ("--dtype", "export"): "of the tensors that are written",
    ("--head", "eval-head"): "what is scored, whatever kind it is",
    ("--layers", "train-matched"): "kept layers of an EAGLE-3 head, by its own rule",
    ("--sizes", "train-matched"): "numbers of prompts, where cost counts nodes",
    ("--dry-run", "push"): "nothing to estimate: it says what it would upload",
    ("--resume", "collect"): "a folder of traces is gone on with unless told otherwise",
    ("--seed", "tail"): "of resampling; nothing is decoded",
    ("--seed", "probe image"): "of the order of wrong images; answers are greedy",
    ("--seed", "ablate conditioning"): "of the order of wrong images; answers are greedy",
    ("--systems", "sweep"): "plain comes along anyway, and the default depends on the axis",
    ("--systems", "cost"): "drafting ones only, the first leads",
    ("--target", "heads"): "a part of a name",
    ("--target", "export"): "for the card; it is not opened",
    ("--tasks", "law"): "tasks of the log",
    ("--tasks", "tail"): "tasks of the log",
    ("--tasks", "width"): "tasks of the log",
    ("--tasks", "probe saliency"): "tasks of the log",
}
# option → why commands have different defaults
DEFAULTS = {
    "--dtype": "what compares, times or studies decodes in float32, the rest in what is stored",
    "--budget": "31 where the paper's studies have it, else 63; none where an engine drafts a chain",
    "--tree": "a list where an audit takes several",
    "--limit": "as many as the command needs for its intervals, in minutes on a CPU",
    "--prompts": "an audit looks at more than a calibration",
    "--max-new-tokens": "a report's strips and a matched probe are short answers",
    "--replicates": "compare has one prompt, and repeats it",
    "--seed": "None draws one and reports it; what compares or resumes has a fixed one",
    "--systems": "one where the drafting ones are implied",
    "--prompt": "demo has its page's",
}


class Words(NamedTuple):
    """What a help page shows of an option."""

    help: str
    metavar: str | None
    panel: str | None


def options() -> dict[str, dict[str, tuple[Words, Any]]]:
    """Option → command → its words and its default."""
    found: dict[str, dict[str, tuple[Words, Any]]] = defaultdict(dict)
    for name in cli.COMMANDS:
        for param in cli._command(name).params:
            if param.param_type_name == "option":
                words = Words(param.help, param.metavar, getattr(param, "rich_help_panel", None))
                found[max(param.opts, key=len)][name] = words, param.default
    return found


OPTIONS = options()
SHARED = sorted(option for option, uses in OPTIONS.items() if len(uses) > 1)


def is_own(option: str, command: str) -> bool:
    return (option, command) in OWN_WORDS or (option, "*") in OWN_WORDS


def stem(words: Words) -> str:
    """The help's first sentence or clause: what follows may say more of one command."""
    return re.split(r"[.;]", words.help)[0]


@pytest.mark.parametrize("option", SHARED)
def test_an_option_has_the_same_words_in_every_command(option: str) -> None:
    uses = {command: words for command, (words, _) in OPTIONS[option].items() if not is_own(option, command)}
    assert len({stem(words) for words in uses.values()}) <= 1, uses
    assert len({words.panel for words in uses.values()}) <= 1, uses
    assert len({(words.metavar or "").removesuffix("|auto") for words in uses.values()}) <= 1, uses


@pytest.mark.parametrize("option", SHARED)
def test_an_option_has_the_same_default_in_every_command(option: str) -> None:
    defaults = {str(value) for command, (_, value) in OPTIONS[option].items() if not is_own(option, command)}
    assert len(defaults) <= 1 or option in DEFAULTS, defaults


def test_no_exception_is_stale() -> None:
    """Each has the option, and its words do differ from the others'."""
    for option, command in OWN_WORDS:
        uses = OPTIONS[option]
        if command == "*":
            assert len({words for words, _ in uses.values()}) > 1
            continue
        others = [words for name, (words, _) in uses.items() if name != command]
        assert others
        assert uses[command][0] not in [words for words in others if not is_own(option, command)]
    for option in DEFAULTS:
        assert len({str(value) for _, value in OPTIONS[option].values()}) > 1, option


@pytest.mark.parametrize(
    ("option", "names"),
    [("--drafter", DRAFTERS), ("--tree", POLICIES), ("--runner", RUNNERS)],
    ids=["drafters", "policies", "runners"],
)
def test_a_help_lists_its_registry(option: str, names: dict[str, object]) -> None:
    for command, (words, _) in OPTIONS[option].items():
        if not is_own(option, command):
            missing = [name for name in names if not re.search(rf"\b{name}\b", words.help)]
            assert not missing, f"{command} {option} does not list {', '.join(missing)}: {words.help}"


def test_the_help_of_engine_lists_its_registry() -> None:
    (engine,) = (param for param in cli._command("engine").params if param.name == "engine")
    assert all(name in engine.help for name in ENGINES)


def test_a_help_is_written_without_torch() -> None:
    code = "import sys, oneglance.commands.options; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_helps_are_sentences() -> None:
    for option, uses in OPTIONS.items():
        for command, (words, _) in uses.items():
            if option != "--help":
                assert words.help, f"{command} {option} has no help"
                assert words.help.endswith((".", ")")), f"{command} {option}: {words.help}"


# Errors ---------------------------------------------------------------------------------------------------------------

ERRORS = {"InputError", "TargetError", "HeadError", "ImageError", "PrivateUrlError"}  # DraftError is for a note
FIX = re.compile(
    r"[;:] |\b(choose|drop|give|leave|make|must|name|needs?|not both|put|set|takes?|use|write|at least|at most)\b"
)
NAME = re.compile(r"[A-Z][A-Z]|Medusa")  # what a message may begin with besides: EAGLE-3, FSDP
BARE = {
    "commands/run.py": "what was given holds nothing, which says it all",
    "serve/reading.py": "a client's request, answered with the name of the parameter (OpenAI's `param`)",
    "fetch.py": "PrivateUrlError takes its fix apart",
    "images.py": "joined from two functions, each of which names it",
}


@cache
def messages() -> list[tuple[str, str]]:
    """(file and line, text of an error's message; what is filled in stands as ``{}``)."""
    found = []
    for path in sorted(SRC.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = text_of(node.exc.args[0])
                if getattr(node.exc.func, "id", "") in ERRORS and text:
                    found.append((f"{path.relative_to(SRC).as_posix()}:{node.lineno}", text))
    return found


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_errors_read_alike() -> None:
    """One clause in lower case without a full stop."""
    found = messages()
    assert len(found) > 300
    for place, text in found:
        assert text[0].islower() or not text[0].isalpha() or NAME.match(text), f"{place}: {text}"
        assert not text.endswith("."), f"{place}: {text}"
        assert "  " not in text, f"{place}: {text}"


def test_errors_name_the_fix() -> None:
    for place, text in messages():
        if place.partition(":")[0] not in BARE:
            assert FIX.search(text), f"{place}: {text}"


# JSON -----------------------------------------------------------------------------------------------------------------

OTHER_NAMES = {  # what a quantity is not called → what it is called
    "accepted_histogram": "acceptance_histogram",
    "acceptance_length": "tau",
    "draft_passes": "num_draft_passes",
    "n_tokens": "num_tokens",
    "tokens_per_round": "tau",
    "tokens_per_step": "tau",
    "speed_up": "speedup",
    "entropy": "entropy_nats",
}


def written_pairs() -> list[tuple[str, str, ast.expr]]:
    """(place, key, value) of each dict that a function which writes JSON spells out."""
    found = []
    for path in sorted(SRC.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef) and writes_json(function):
                for node in ast.walk(function):
                    for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            found.append((f"{path.relative_to(SRC).as_posix()}:{node.lineno}", key.value, value))
    return found


def writes_json(function: ast.FunctionDef) -> bool:
    called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return "as_dict" in function.name or any(getattr(name, "attr", "") == "write_json" for name in called)


def test_a_quantity_has_one_name_in_json() -> None:
    """A count is ``num_*``, and what has a name in one command is not called otherwise in another."""
    found = written_pairs()
    assert len(found) > 100
    for place, key, value in found:
        assert key not in OTHER_NAMES, f"{place}: say {OTHER_NAMES.get(key)}"
        is_count = isinstance(value, ast.Call) and getattr(value.func, "id", "") == "len"
        assert not is_count or key.startswith("num_"), f"{place}: {key} is a count; say num_{key}"
