"""``oneglance chat``: a conversation about images, in the terminal."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Any

from oneglance.commands import opening, options, terminal
from oneglance.commands.opening import open_decoder, read_images, sampling
from oneglance.core import DEFAULT_PREFIX_MB, InputError

if TYPE_CHECKING:
    from oneglance.core import Generation, SamplingParams
    from oneglance.decoder import Decoder

HELP = "/image PATH adds an image to the next message · /clear starts anew · /help says this · /quit or Ctrl-D ends"


def chat(
    image: options.Images = None,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    drafter: options.Drafter = "block",
    tree: options.Tree = "best_first",
    budget: options.AutoBudget = options.AUTO_BUDGET,
    branch_k: options.BranchK = None,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    system: options.System = None,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = None,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    prefix_cache_mb: options.PrefixCache = DEFAULT_PREFIX_MB,
    json: options.Json = False,
) -> None:
    """Talk about images, turn by turn.

    A line is a message; "/image PATH" adds an image to the next one, "/clear" starts anew, "/help" lists these,
    "/quit" or Ctrl-D ends. Ctrl-C ends an answer and keeps what was decoded. Lines may also be piped in, where the
    first bad one ends it all; with --json the conversation and the figures of each answer come out as one object at
    the end.
    """
    params = sampling(max_new_tokens, temperature=temperature, top_p=top_p, seed=seed)
    pictures = read_images(image)
    decoder = open_decoder(
        target,
        head,
        drafter=drafter,
        tree=tree,
        budget=opening.budget_of(budget),
        branch_k=branch_k,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attention=attention,
        runner=runner,
        threads=threads,
    ).with_prefixes(prefix_cache_mb)
    talk = Conversation(decoder, params, system, pictures, show=not json)
    is_asked = sys.stdin.isatty()
    if is_asked:
        print(HELP, file=sys.stderr)
    while (line := next_line(is_asked)) is not None:
        try:
            if not talk.take(line):
                break
        except InputError as error:
            if not is_asked:
                raise
            print(f"error: {terminal.visible(str(error))}", file=sys.stderr)
    if json:
        terminal.write_json({"turns": talk.turns})


def next_line(is_asked: bool) -> str | None:
    """A line from the terminal or the pipe; None at its end."""
    try:
        if is_asked:
            return input("> ")
        line = sys.stdin.readline()
    except EOFError:
        print(file=sys.stderr)
        return None
    except KeyboardInterrupt:
        if is_asked:  # the shell's prompt begins on a line of its own
            print(file=sys.stderr)
        raise
    except UnicodeDecodeError as error:
        raise InputError("stdin is not UTF-8 text; add an image with /image PATH") from error
    return line.rstrip("\r\n") if line else None


class Conversation:
    """Messages so far, and what to do with a line.

    Args:
        decoder: answers.
        params: how.
        system: system prompt.
        pictures: of the first message.
        show: write answers as they come.

    Attributes:
        turns: each message with its answer.
    """

    def __init__(
        self, decoder: Decoder, params: SamplingParams, system: str | None, pictures: list[Any], *, show: bool
    ) -> None:
        self.turns: list[dict[str, Any]] = []
        self._decoder = decoder
        self._params = params
        self._system = system
        self._pictures = pictures
        self._messages: list[dict[str, Any]] = []
        self._show = show

    def take(self, line: str) -> bool:
        """Obey or answer a line; whether the conversation goes on."""
        command, _, rest = line.strip().partition(" ")
        if command in ("/quit", "/exit"):
            return False
        if command == "/help":
            print(HELP, file=sys.stderr)
        elif command == "/clear":
            self._messages, self._pictures = [], []
        elif command == "/image":
            try:
                paths = shlex.split(rest)
            except ValueError as error:
                raise InputError(f"/image takes paths, and {rest!r} has an open quotation; close it") from error
            if not paths:
                raise InputError("/image takes the path of an image")
            self._pictures += read_images(paths)
        elif command.startswith("/") and command[1:].isalpha():
            raise InputError(f"there is no {command}; {HELP}")
        elif line.strip() or self._pictures:
            self._answer(line)
        return True

    def _answer(self, line: str) -> None:
        content: list[dict[str, Any]] = [{"type": "image", "image": picture} for picture in self._pictures]
        content += [{"type": "text", "text": line}] if line.strip() else []
        asked = [*self._messages, {"role": "user", "content": content}]
        done = self._decode(asked)
        self._messages = [*asked, {"role": "assistant", "content": done.text}]
        self._pictures = []
        self.turns.append({"user": line, "answer": done.as_dict()})

    def _decode(self, messages: list[dict[str, Any]]) -> Generation:
        stream = self._decoder.stream_params(messages, self._params, system=self._system)
        printer = terminal.StreamPrinter(sys.stdout) if self._show else None
        terminal.follow(stream, printer)
        done = stream.generation
        if printer:
            print(terminal.visible(terminal.summary(done)), file=sys.stderr)
        return done
