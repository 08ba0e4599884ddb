"""The reader's tokenizer: byte-level BPE over the suite's texts, with single digits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenizers import Encoding, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from oneglance.tasks.synthetic import SEEDS, TASKS, sheet

SPECIAL: Final = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|mask|>",
)
PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE: Final = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part %}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}
            {%- elif 'text' in part %}
                {{- part.text }}
            {%- else %}
                {{- raise_exception('This model takes text and images only.') }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def build(vocab_size: int, *, num_per_task: int = 1500) -> Tokenizer:
    """Train the tokenizer on training pages' prompts and answers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(num_per_task), trainer)
    return tokenizer


def load_or_build(path: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer in this file, which is made when it is missing."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        build(vocab_size).save(str(path))
    return Tokenizer.from_file(str(path))


def _texts(num_per_task: int) -> Iterator[str]:
    for task in TASKS:
        for seed in SEEDS["train"][:num_per_task]:
            drawn = sheet(task, seed, split="train")
            yield f"user\n{drawn.prompt}"
            yield f"assistant\n{drawn.answer}"
            yield "".join(f" {word}" for word in drawn.answer.split())


class Encoder:
    """Prompt and answer as token ids, in Qwen's chat layout."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.image_id, self.end_id = self.id("<|image_pad|>"), self.id("<|im_end|>")
        self._ids: dict[str, list[int]] = {}

    def id(self, token: str) -> int:
        """The id of a special token."""
        found = self.tokenizer.token_to_id(token)
        assert found is not None, token
        return int(found)

    def prompt(self, text: str, num_cells: int) -> list[int]:
        """The ids up to where the answer begins."""
        image = "<|vision_start|>" + "<|image_pad|>" * num_cells + "<|vision_end|>"
        chat = f"<|im_start|>user\n{image}{text}<|im_end|>\n<|im_start|>assistant\n"
        return list(self.tokenizer.encode(chat).ids)

    def answer(self, text: str) -> Encoding:
        """The answer's tokens, to which the end token is still to be added."""
        return self.tokenizer.encode(text)

    def pieces(self, word: str) -> list[tuple[int, int]]:
        """(index of the first character, id) of each piece of a word inside a line."""
        encoding = self.tokenizer.encode(f" {word}")
        return [
            (max(start, 1) - 1, id_)
            for id_, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            if word[max(start, 1) - 1 : end - 1].strip()
        ]
