"""From ids to text: characters are never split, stop strings end the text wherever they stand, caps hold."""

import codecs
from collections.abc import Sequence

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from oneglance.core import InputError, SamplingParams
from oneglance.testing import QWEN_TEMPLATE, QWEN_TOKENS, byte_tokenizer
from oneglance.text import Detokenizer, TextStream

TEXTS = [
    "plain words",
    "Grüße, naïve café",
    "日本語テキスト 中文 한국어",
    "👍🏽 👨‍👩‍👧‍👦 🇨🇭 flags and families",
    "e\N{COMBINING ACUTE ACCENT}a\N{COMBINING DIAERESIS}\N{COMBINING MACRON} combined",
    "नमस्ते ไทย العربية",
    "\N{ZERO WIDTH SPACE}\N{RIGHT-TO-LEFT MARK}\r\n\t\0 odd ones",
    "a \N{REPLACEMENT CHARACTER} that is meant",
    "\N{REPLACEMENT CHARACTER}",
]


class Pieces:
    """A tokenizer whose tokens are given byte strings, as a byte-level BPE has them; special ones spell nothing."""

    def __init__(self, tokens: Sequence[bytes], special: Sequence[int] = ()) -> None:
        self.tokens, self.special = list(tokens), set(special)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        kept = [i for i in token_ids if not (skip_special_tokens and i in self.special)]
        return b"".join(self.tokens[i] for i in kept).decode("utf-8", errors="replace")


@st.composite
def split(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """Bytes cut into tokens anywhere, inside characters too."""
    tokens = []
    while data:
        size = draw(st.integers(1, min(5, len(data))))
        tokens.append(data[:size])
        data = data[size:]
    return tokens


def stream_of(
    tokens: Sequence[bytes], *, stop: Sequence[str] = (), cap: int = 10_000, eos: Sequence[int] = (), room: int = 10_000
) -> TextStream:
    params = SamplingParams(max_new_tokens=cap, stop=tuple(stop))
    return TextStream(Pieces(tokens, special=eos), params, eos_ids=eos, context_room=room)


# Detokenisation --------------------------------------------------------------------------------------------------


@given(st.data(), st.one_of(st.sampled_from(TEXTS), st.text(max_size=30)))
def test_text_comes_in_whole_characters(data: st.DataObject, text: str) -> None:
    tokens = data.draw(split(text.encode()))
    detokenizer = Detokenizer(Pieces(tokens))
    so_far = ""
    for token_id in range(len(tokens)):
        so_far += detokenizer.push(token_id)
        assert text.startswith(so_far)
    assert so_far + detokenizer.flush() == text


@given(st.data(), st.one_of(st.sampled_from(TEXTS), st.text(alphabet="aé日👍", max_size=30)))
def test_a_character_comes_as_soon_as_it_is_complete(data: st.DataObject, text: str) -> None:
    assume("\N{REPLACEMENT CHARACTER}" not in text)
    tokens = data.draw(split(text.encode()))
    detokenizer, oracle = Detokenizer(Pieces(tokens)), codecs.getincrementaldecoder("utf-8")()
    for token_id, token in enumerate(tokens):
        assert detokenizer.push(token_id) == oracle.decode(token)


@given(st.data(), st.binary(max_size=40))
@example(data=None, raw=b"\xe2\x82").via("an incomplete character at the end")
@example(data=None, raw=b"\xe2(\xa1\xff\xfe\xf0\x9f\x91").via("invalid bytes")
def test_any_bytes_decode_as_they_do_at_once(data: st.DataObject | None, raw: bytes) -> None:
    tokens = data.draw(split(raw)) if data else [raw[i : i + 1] for i in range(len(raw))]
    detokenizer = Detokenizer(Pieces(tokens))
    text = "".join(detokenizer.push(token_id) for token_id in range(len(tokens)))
    assert text + detokenizer.flush() == raw.decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", TEXTS)
def test_a_real_byte_level_tokenizer(text: str) -> None:
    tokenizer = byte_tokenizer(QWEN_TOKENS, QWEN_TEMPLATE)
    ids = tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"]
    assert len(ids) == len(text.encode()) + 1
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token_id) for token_id in ids]
    assert "".join(pieces) + detokenizer.flush() == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_special_tokens_between_the_bytes_of_a_character_are_skipped() -> None:
    tokens = [b"\xe2", b"<|special|>", b"\x82", b"\xac"]
    detokenizer = Detokenizer(Pieces(tokens, special=[1]))
    assert [detokenizer.push(i) for i in range(4)] == ["", "", "", "€"]


# Stop strings ----------------------------------------------------------------------------------------------------


def naive(tokens: Sequence[bytes], stop: Sequence[str]) -> tuple[int, str]:
    """Tokens kept and text, by decoding all complete characters anew after each token."""
    for count in range(1, len(tokens) + 1):
        text = codecs.getincrementaldecoder("utf-8")(errors="replace").decode(b"".join(tokens[:count]))
        hits = [text.find(s) for s in stop if s in text]
        if hits:
            return count, text[: min(hits)]
    return len(tokens), b"".join(tokens).decode("utf-8", errors="replace")


@given(
    st.data(),
    st.text(alphabet="ab é日👍", max_size=20),
    st.lists(st.text(alphabet="ab é日👍", min_size=1, max_size=4), max_size=3),
    st.integers(1, 16),
)
def test_stop_strings_end_text_and_ids_wherever_they_stand(
    data: st.DataObject, text: str, stop: list[str], block: int
) -> None:
    """At the start, in the middle and at the end of a block, across blocks and across tokens, overlapping, unicode."""
    tokens = data.draw(split(text.encode()))
    stream = stream_of(tokens, stop=stop)
    pieces: list[str] = []
    for start in range(0, len(tokens), block):
        if stream.room:
            pieces += [piece.text for piece in stream.push(range(len(tokens))[start : start + block])]
    tail = stream.close()
    count, expected = naive(tokens, stop)
    assert stream.token_ids == list(range(count))
    assert stream.text == "".join(pieces) + tail == expected
    assert len(pieces) == count
    assert stream.finish_reason == ("stop" if any(s in text for s in stop) else "cancelled")


@pytest.mark.parametrize(
    ("tokens", "stop", "count", "text"),
    [
        ([b"stop", b"x"], ["stop"], 1, ""),
        ([b"x", b"stop", b"y"], ["stop"], 2, "x"),
        ([b"xst", b"opy", b"z"], ["stop"], 2, "x"),
        ([b"s", b"t", b"o", b"p", b"!"], ["stop"], 4, ""),
        ([b"s", b"st", b"op"], ["stop"], 3, "s"),
        ([b"aab", b"c"], ["ab", "aab"], 1, ""),
        ([b"ab", b"c"], ["abcd", "b"], 1, "a"),
        ([b"ab", b"ab", b"c"], ["abc"], 3, "ab"),
        ([b"x\n", b"\ny"], ["\n\n"], 2, "x"),
        ([b"caf\xc3", b"\xa9!", b"z"], ["é"], 2, "caf"),
        ([b"\xf0\x9f", b"\x91\x8d", b"z"], ["👍"], 2, ""),
        ([b"end\xe2", b"\x82\xac"], ["end"], 1, ""),  # the token that completes it begins another character
        ([b"sto", b"q"], ["stop"], 2, "stoq"),
    ],
)
def test_stop_string_table(tokens: list[bytes], stop: list[str], count: int, text: str) -> None:
    stream = stream_of(tokens, stop=stop)
    stream.push(range(len(tokens)))
    stream.close()
    assert (len(stream.token_ids), stream.text) == (count, text)


def test_text_that_may_begin_a_stop_string_is_held_back() -> None:
    stream = stream_of([b"x", b"st", b"op", b"ped"], stop=["stopped"])
    assert [piece.text for piece in stream.push([0, 1, 2])] == ["x", "", ""]
    assert stream.push([3])[0].text == ""
    assert (stream.text, stream.cut) == ("x", "stop")
    stream = stream_of([b"x", b"st", b"op"], stop=["stopped"], cap=3)
    stream.push([0, 1, 2])
    assert stream.text == "x"
    assert stream.close() == "stop"
    assert (stream.text, stream.finish_reason) == ("xstop", "length")


# Caps, end of sequence, context ------------------------------------------------------------------------------------

LETTERS = [bytes([c]) for c in b"abcdefghijklmnopqrstuvwxyz0123456789"]


@pytest.mark.parametrize("cap", [0, 1, 2, 15, 16, 17])
@pytest.mark.parametrize("block", [1, 16])
def test_cap_is_never_exceeded(cap: int, block: int) -> None:
    stream = stream_of(LETTERS, cap=cap)
    start = 0
    while stream.room:
        start += len(stream.push(range(len(LETTERS))[start : start + block]))
    assert stream.token_ids == list(range(cap))
    assert stream.text + stream.close() == "abcdefghijklmnopqrstuvwxyz"[:cap]
    assert (stream.cut, stream.finish_reason, stream.room) == ("cap", "length", 0)
    assert stream.push([0]) == []


# one block of 16 tokens a..p; position of EOS, of the token that completes the stop string, cap
TABLE = [
    (None, None, 16, 16, "length", "cap"),
    (None, None, 5, 5, "length", "cap"),
    (0, None, 16, 1, "stop", "eos"),
    (7, None, 16, 8, "stop", "eos"),
    (15, None, 16, 16, "stop", "eos"),
    (None, 0, 16, 1, "stop", "stop"),
    (None, 7, 16, 8, "stop", "stop"),
    (None, 15, 16, 16, "stop", "stop"),
    (3, 7, 16, 4, "stop", "eos"),
    (7, 3, 16, 4, "stop", "stop"),
    (7, None, 8, 8, "stop", "eos"),  # all on the last token that fits: what the text says comes first
    (None, 7, 8, 8, "stop", "stop"),
    (7, 7, 8, 8, "stop", "eos"),
    (8, None, 8, 8, "length", "cap"),
    (None, 8, 8, 8, "length", "cap"),
    (9, 8, 7, 7, "length", "cap"),
]


@pytest.mark.parametrize(("eos", "stop", "cap", "kept", "reason", "cut"), TABLE)
def test_whichever_comes_first_ends_it(
    eos: int | None, stop: int | None, cap: int, kept: int, reason: str, cut: str
) -> None:
    strings = [chr(ord("a") + stop)] if stop is not None else []
    stream = stream_of(LETTERS, cap=cap, stop=strings, eos=[] if eos is None else [99, eos])
    pieces = stream.push(range(16))
    stream.close()
    assert (len(pieces), stream.token_ids) == (kept, list(range(kept)))
    assert (stream.finish_reason, stream.cut) == (reason, cut)
    visible = kept if cut == "cap" else kept - 1
    assert stream.text == "abcdefghijklmnopqrstuvwxyz"[:visible]


def test_end_of_sequence_can_be_ignored() -> None:
    params = SamplingParams(max_new_tokens=4, ignore_eos=True)
    stream = TextStream(Pieces(LETTERS), params, eos_ids=[1], context_room=99)
    assert len(stream.push([0, 1, 2, 3, 4])) == 4


def test_context_limit_has_its_own_cut() -> None:
    stream = stream_of(LETTERS, cap=16, room=3)
    assert len(stream.push(range(16))) == 3
    assert (stream.cut, stream.finish_reason) == ("context", "length")
    exact = stream_of(LETTERS, cap=3, room=3)
    exact.push(range(16))
    assert exact.cut == "cap"


def test_a_generation_that_was_not_finished_is_cancelled() -> None:
    stream = stream_of(LETTERS)
    stream.push([0, 1])
    assert (stream.finish_reason, stream.text) == ("cancelled", "ab")


@pytest.mark.parametrize("options", [{"max_new_tokens": -1}, {"stop": ("",)}, {"stop": ("a", "")}])
def test_bad_parameters_are_named(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match=r"max_new_tokens must be at least 0, got -1|a stop string is empty"):
        SamplingParams(**options)  # type: ignore[arg-type]
