"""The command line: a table of commands, each imported only when it runs, so that ``oneglance --help`` stays quick.

Exit codes: 0 done, 1 the check failed, 2 bad input (one line on stderr that names the fix), 130 interrupted.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from oneglance import __version__
from oneglance.core import InputError, OneglanceWarning

INTERRUPTED = 128 + 2  # as a shell reports SIGINT
USAGE = 2  # bad input
BROKEN_PIPE = 128 + 13  # as a shell reports SIGPIPE
UNUSABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.ENOTDIR, errno.EISDIR, errno.EEXIST} | {
    errno.ENAMETOOLONG,
    errno.ELOOP,
}
FULL = {errno.ENOSPC, errno.EDQUOT}
# of the copy of click that typer holds and does not name
CLICK_ERROR: Any = next(own for own in typer.BadParameter.__mro__ if own.__name__ == "ClickException")
OUT_OF_MEMORY = "docs/troubleshooting.md#out-of-memory"
QUIET = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_VERBOSITY": "error",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}


class Row(NamedTuple):
    """A command: where its function is, the panel of the help that it stands in, and its line there."""

    place: str  # "module:function"
    panel: str
    help: str


RUN, PROVE, MEASURE, TRAIN, STUDY, SHIP = "Run", "Prove", "Measure", "Train", "Study", "Ship"
COMMANDS: dict[str, Row] = {
    "demo": Row("oneglance.commands.demo:demo", RUN, "Decode a page plainly and with the draft head, side by side."),
    "generate": Row("oneglance.commands.generate:generate", RUN, "Answer a prompt about images, as it is decoded."),
    "run": Row("oneglance.commands.run:run", RUN, "Ask one question about every page of a folder, into a file."),
    "chat": Row("oneglance.commands.chat:chat", RUN, "Talk about images, turn by turn."),
    "doctor": Row("oneglance.commands.doctor:doctor", RUN, "Check this machine, a target and its draft head."),
    "inspect": Row("oneglance.commands.inspect:inspect", RUN, "Show a target or a draft head, and whether two fit."),
    "plan": Row("oneglance.commands.plan:plan", RUN, "Say what decoding will hold in memory, without loading it."),
    "audit": Row("oneglance.commands.audit:audit", PROVE, "Compare every output with an independent plain loop."),
    "calibrate-gate": Row(
        "oneglance.commands.calibrate:calibrate_gate", PROVE, "Measure how wide the gate for near-ties must be here."
    ),
    "bench": Row("oneglance.commands.bench:bench", MEASURE, "Time systems against plain decoding on the same prompts."),
    "sweep": Row("oneglance.commands.sweep:sweep", MEASURE, "Vary budget, depth, context, temperature or threads."),
    "cost": Row("oneglance.commands.cost:cost", MEASURE, "Time the parts of a round in one process."),
    "compare": Row("oneglance.commands.compare:compare", MEASURE, "Decode one prompt by all systems, side by side."),
    "worth-it": Row("oneglance.commands.worth:worth_it", MEASURE, "Say whether drafting pays on your own images."),
    "reproduce": Row("oneglance.commands.reproduce:reproduce", MEASURE, "Set the paper's numbers beside ours."),
    "report": Row("oneglance.commands.report:report", MEASURE, "Write results as one HTML page, or as tables."),
    "ledger": Row("oneglance.commands.ledger:ledger", MEASURE, "Compare two results, where they can be compared."),
    "collect": Row("oneglance.commands.collect:collect", TRAIN, "Write the target's own answers to prompts as traces."),
    "train": Row("oneglance.commands.train:train", TRAIN, "Train a draft head on traces, by a recipe."),
    "train-matched": Row(
        "oneglance.commands.matched:train_matched", TRAIN, "Train an EAGLE-3 head on the same terms, and compare."
    ),
    "select": Row("oneglance.commands.heads:select", TRAIN, "Make the best checkpoint of a run its head."),
    "eval-head": Row("oneglance.commands.heads:eval_head", TRAIN, "Score a head on held-out traces, per task."),
    "fit-head": Row("oneglance.commands.fit:fit_head", TRAIN, "Make a head for your own images, in one go."),
    "heads": Row("oneglance.commands.heads:heads", TRAIN, "List the draft heads that are known."),
    "rounds": Row("oneglance.commands.rounds:rounds", STUDY, "Write a row a round: entropy, accepted length, ranks."),
    "law": Row("oneglance.commands.law:law", STUDY, "Fit the entropy law to round logs, and judge it."),
    "tail": Row("oneglance.commands.tail:tail", STUDY, "Test whether the entropy floor has two hazards."),
    "width": Row("oneglance.commands.width:width", STUDY, "Replay width policies on a log's own marginals."),
    "probe image": Row("oneglance.commands.probe:image", STUDY, "Set the right image against a wrong one."),
    "probe saliency": Row("oneglance.commands.probe:saliency", STUDY, "Ask what attention adds to entropy."),
    "ablate conditioning": Row(
        "oneglance.commands.ablate:conditioning", STUDY, "Take the drafter's visual state away, or swap it."
    ),
    "ablate layers": Row("oneglance.commands.ablate:layers", STUDY, "Leave out some of the layers that a head reads."),
    "transfer": Row("oneglance.commands.transfer:transfer", STUDY, "Fit the law across drafters, targets, modalities."),
    "serve": Row("oneglance.commands.serve:serve", SHIP, "Answer OpenAI clients, and show a page to try it on."),
    "engine": Row("oneglance.commands.engine:engine", SHIP, "Print or start the command for vLLM or SGLang."),
    "export": Row("oneglance.commands.publish:export", SHIP, "Write a head in the layout of another program."),
    "push": Row("oneglance.commands.publish:push", SHIP, "Write a head's model card, and upload both."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    with _notes():
        try:
            code = _run(sys.argv[1:] if argv is None else argv)
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    return code


def _run(argv: Sequence[str]) -> int:
    """A command line's exit code; what it says wrong is one line."""
    odd = next((word for word in argv if any("\ud800" <= c <= "\udfff" for c in word)), None)
    if odd is not None:
        say("error", f"the argument {odd!a} is not UTF-8 text; write it in UTF-8, rename the file, or fix the locale")
        return USAGE
    try:
        code = typer.main.get_command(_application())(args=list(argv), prog_name="oneglance", standalone_mode=False)
    except CLICK_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
        else:
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "oneglance"
            text = _words(error).strip().rstrip(".")
            asks = context is not None and any(param.name == "image" for param in context.command.params)
            is_extra = "unexpected extra argument" in text
            advice = "an image follows --image, a prompt stands in quotes; " if asks and is_extra else ""
            say("error", f"{text}; {advice}{command} --help lists what there is")
        return USAGE
    except typer.Abort:
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def _words(error: Any) -> str:
    """What typer says of a command line; of an unknown option the likeliest ones, the nearest first."""
    likely = getattr(error, "possibilities", None)
    if likely and hasattr(error, "option_name"):
        return f"{error.message} (Possible options: {', '.join(likely)})"
    return str(error.format_message())


def say(kind: str, message: object) -> None:
    """One line on stderr: ``error: …`` or ``note: …``, whatever the message holds."""
    text = "".join(c if c.isprintable() else " " for c in str(message))
    with contextlib.suppress(OSError):
        print(f"{kind}: {' '.join(text.split())}", file=sys.stderr, flush=True)


class LazyGroup(TyperGroup):
    """Lists commands from the table, panel by panel in plain text; imports the one that is chosen.

    A name may have two words.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel in dict.fromkeys(row.panel for row in COMMANDS.values()):
            with formatter.section(panel):
                formatter.write_dl([(name, row.help) for name, row in COMMANDS.items() if row.panel == panel])

    def get_params(self, ctx: Any) -> Any:
        return _without_python(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        two = " ".join(args[:2])
        name, stub, rest = super().resolve_command(ctx, [two, *args[2:]] if two in COMMANDS else args)
        return name, (_command(name) if name in COMMANDS else stub), rest


def _application() -> typer.Typer:
    app = typer.Typer(
        cls=LazyGroup,
        help="Fast lossless decoding of vision-language models with a draft head.",
        epilog="oneglance COMMAND --help shows a command's options.",
        no_args_is_help=True,
        rich_markup_mode=None,  # importing rich would double the time of --help
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, row in COMMANDS.items():
        app.command(name, help=row.help)(_stub)
    return app


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"oneglance {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", callback=_show_version)] = False,
) -> None:
    """Options of ``oneglance`` itself."""


def _stub() -> None:
    """Stands in the table's help for a command that is not imported yet."""


def _command(name: str) -> Any:
    """The real command, as typer builds it from its function."""
    module, function = COMMANDS[name].place.split(":")
    run = getattr(import_module(module), function)
    paragraphs = (inspect.getdoc(run) or "").split("\n\n")
    app = typer.Typer(add_completion=False, rich_markup_mode="rich")
    app.command(
        name,
        help="\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs),
        context_settings={"help_option_names": ["-h", "--help"]},
        cls=Guarded,
    )(run)
    command = typer.main.get_command(app)
    _show_brackets(command)
    return command


def _show_brackets(command: Any) -> None:
    """Let helps say ``[train]``, an extra: rich would take it for a style, and leave it out."""
    from rich.markup import escape

    command.help = escape(command.help or "")
    for param in command.params:
        param.help = escape(getattr(param, "help", None) or "")


def _without_python(params: Any) -> Any:
    """Parameters whose help does not say ``<bool>`` and ``<list[str]>``: a flag needs no word, an argument has one."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.param_type_name == "argument":
            param.display_type = lambda ctx: None
    return params


class Guarded(TyperCommand):
    """A command whose line is checked before it runs, and whose failures become exit codes."""

    def get_params(self, ctx: Any) -> Any:
        return _without_python(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        from oneglance.commands.checks import check_line

        try:
            check_line(ctx)
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort):
            raise
        except InputError as error:
            say("error", error)
            raise typer.Exit(USAGE) from error
        except (MemoryError, RuntimeError) as error:
            from oneglance.targets.loading import is_out_of_memory

            if not is_out_of_memory(error):
                raise
            say("error", f"out of memory; oneglance plan says what is needed, and {OUT_OF_MEMORY} what to lower")
            raise typer.Exit(USAGE) from error
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(INTERRUPTED) from interrupt
        except BrokenPipeError as closed:
            _drop_output()
            raise typer.Exit(BROKEN_PIPE) from closed
        except OSError as error:
            if error.filename is None and error.errno in FULL:
                say("error", "the disk is full; free some space and run this again: what was written whole is kept")
                raise typer.Exit(USAGE) from error
            if error.filename is None or error.errno not in UNUSABLE:
                raise
            say("error", f"cannot use {os.fspath(error.filename)} ({error.strerror}); choose another place")
            raise typer.Exit(USAGE) from error


def _drop_output() -> None:
    """Whoever read our output has gone: nothing more goes there, not even at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _notes() -> Iterator[None]:
    """Our own warnings as one ``note:`` line each, once; others' only where Python was asked for them (``-W``)."""
    said: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, OneglanceWarning):
            print(warnings.formatwarning(message, category, filename, lineno, line), file=sys.stderr, end="")
        elif str(message) not in said:
            said.add(str(message))
            say("note", message)

    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        warnings.simplefilter("always", OneglanceWarning)
        warnings.showwarning = show
        yield


if __name__ == "__main__":
    sys.exit(main())
