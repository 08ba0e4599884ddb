"""``oneglance generate``: answer a prompt, streamed."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from oneglance.commands import opening, options, terminal
from oneglance.commands.opening import open_decoder, read_images, sampling
from oneglance.core import InputError

Prompt = Annotated[str, typer.Argument(metavar="PROMPT", help="What to ask; - reads it from stdin.")]


def generate(
    prompt: Prompt = "",
    image: options.Images = None,
    audio: options.Audio = None,
    target: options.Target = options.BUILTIN,
    head: options.Head = None,
    drafter: options.Drafter = "block",
    tree: options.Tree = "best_first",
    budget: options.AutoBudget = options.AUTO_BUDGET,
    branch_k: options.BranchK = None,
    max_new_tokens: options.MaxNewTokens = options.MAX_NEW_TOKENS,
    stop: options.Stop = None,
    system: options.System = None,
    gate: options.Gate = "off",
    temperature: options.Temperature = 0.0,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    repetition_penalty: options.RepetitionPenalty = None,
    frequency_penalty: options.FrequencyPenalty = 0.0,
    presence_penalty: options.PresencePenalty = 0.0,
    logit_bias: options.LogitBias = None,
    bad_word: options.BadWord = None,
    min_new_tokens: options.MinNewTokens = None,
    json_schema: options.JsonSchema = None,
    regex: options.Regex = None,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    device_map: options.DeviceMap = None,
    attention: options.Attention = "sdpa",
    threads: options.Threads = None,
    runner: options.Runner = "auto",
    fixed_shape: options.FixedShape = False,
    logprobs: options.Logprobs = None,
    json: options.Json = False,
) -> None:
    """Answer a prompt about images, as it is decoded.

    On a terminal the run of tokens that each round accepted has one colour, and the bonus token that the target added
    is underlined. Figures follow on stderr. Ctrl-C ends the answer and keeps what was decoded. With --audio a speech
    target writes down what it hears.
    """
    if prompt == "-":
        prompt = _read_stdin()
    params = sampling(
        max_new_tokens,
        stop,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        repetition_penalty=repetition_penalty,
        frequency_penalty=frequency_penalty,
        presence_penalty=presence_penalty,
        logit_bias=logit_bias,
        bad_word=bad_word,
        min_new_tokens=min_new_tokens,
        json_schema=opening.schema(json_schema),
        regex=regex,
        logprobs=logprobs,
    )
    if logprobs is not None and not json:
        raise InputError("--logprobs goes with --json, where there is room for them; add that")
    margin = opening.gate(gate)
    pictures = read_images(image)
    if not prompt and not pictures and audio is None:
        raise InputError("the prompt is empty; give a text, --image, or both")
    if not pictures:
        opening.refuse_path(prompt)
    opening.note_foreign(target, pictures)
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
        fixed_shape=fixed_shape,
    )
    params = replace(params, gate=opening.delta(margin, decoder.target))
    opening.note_unasked(target, prompt, pictures)
    stream = decoder.stream_params(prompt, params, images=pictures, system=system, audio=audio)
    is_whole = terminal.follow(stream, None if json else terminal.StreamPrinter(sys.stdout))
    if json:
        terminal.write_json(stream.generation.as_dict())
    else:
        print(terminal.visible(terminal.summary(stream.generation)), file=sys.stderr)
    if not is_whole:
        raise KeyboardInterrupt


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError("the prompt on stdin is not UTF-8 text; pass an image with --image") from error
