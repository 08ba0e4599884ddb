"""Speech: what Whisper's own ``generate`` writes, with its language, its suppressed tokens and its timestamps."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch

from conformance.conftest import tiny
from helpers import counting, decode_ids, hf_generate, noise, prompt
from oneglance.core import Drafter, InputError, OneglanceWarning, TargetError, TokenTree
from oneglance.decoder import Decoder
from oneglance.drafters.block import BlockDrafter
from oneglance.drafters.ngram import NgramDrafter, NgramSettings
from oneglance.drafters.plain import NoDrafter
from oneglance.drafters.two_model import TwoModelDrafter, TwoModelSettings
from oneglance.reference import hf_generate as own_generate
from oneglance.reference import reference
from oneglance.targets import open_target
from oneglance.targets.base import Target
from oneglance.targets.chat import encode
from oneglance.testing import save_target, tiny_head, tiny_target
from oneglance.tiny import NUM_BYTES, WHISPER_TOKENS

IDS = {token: NUM_BYTES + i for i, token in enumerate(WHISPER_TOKENS)}
EOS, START = IDS["<|endoftext|>"], IDS["<|startoftranscript|>"]
MULTILINGUAL = {
    "is_multilingual": True,
    "lang_to_id": {"<|en|>": IDS["<|en|>"], "<|de|>": IDS["<|de|>"]},
    "task_to_id": {"translate": IDS["<|translate|>"], "transcribe": IDS["<|transcribe|>"]},
    "no_timestamps_token_id": IDS["<|notimestamps|>"],
}
NUM_TOKENS = 16


@pytest.fixture
def target() -> Target:
    return tiny_target("whisper")


@pytest.fixture(scope="module")
def shared() -> Target:
    """For tests that change nothing."""
    return tiny("whisper", "sdpa")


@contextmanager
def configured(target: Target, **generation: Any) -> Iterator[None]:
    before = copy.deepcopy(target.model.generation_config)
    target.model.generation_config.update(**generation)
    for name, value in generation.items():
        setattr(target.model.generation_config, name, value)
    try:
        yield
    finally:
        target.model.generation_config = before


def transcribed(target: Target, seed: int, text: str = "") -> list[int]:
    """The oracle: what a user of transformers writes, from the waveform on."""
    features = target.processor(noise(seed), sampling_rate=16_000, return_tensors="pt").input_features
    options = {"prompt_ids": torch.from_numpy(target.processor.get_prompt_ids(text))} if text else {}
    with torch.inference_mode():
        out = target.model.generate(features, do_sample=False, max_new_tokens=NUM_TOKENS, **options)
    return [int(token) for token in out[0]]


def drafters(target: Target, ahead: list[int]) -> dict[str, Drafter]:
    """Block head, copies of the text so far, a smaller model of the same tokenizer, and one as good as the target."""
    settings = TwoModelSettings(num_draft=4)
    return {
        "block": BlockDrafter(tiny_head(target), target, budget=15),
        "ngram": NgramDrafter(target, NgramSettings(), budget=8),
        "two_model": TwoModelDrafter(small(), target, settings),
        "itself": TwoModelDrafter(tiny("whisper", "sdpa"), target, settings),
    }


@cache
def small() -> Target:
    return tiny_target("whisper", seed=3, num_hidden_layers=2)


GENERATIONS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "language": {**MULTILINGUAL, "language": "de", "task": "translate"},
    "detected": MULTILINGUAL,
    "forced": {"forced_decoder_ids": [[1, IDS["<|en|>"]], [2, IDS["<|transcribe|>"]]]},
    "timestamps": {**MULTILINGUAL, "language": "en", "return_timestamps": True, "max_initial_timestamp_index": 2},
}


@pytest.mark.parametrize(
    ("name", "text"), [*((name, "") for name in GENERATIONS), ("detected", "as I said"), ("timestamps", "and")]
)
@pytest.mark.filterwarnings("ignore:the target's generation config")
def test_every_drafter_writes_what_generate_writes(target: Target, name: str, text: str) -> None:
    with configured(target, **GENERATIONS[name]):
        free = transcribed(target, 1, text)
        suppressed = {"suppress_tokens": [free[2], 5], "begin_suppress_tokens": [free[0], EOS]}
        with configured(target, **suppressed):
            expected = transcribed(target, 1, text)
            assert expected != free
            inputs = encode(target, text, audio=noise(1))
            for kind, drafter in drafters(target, expected).items():
                generation = decode_ids(Decoder(target, drafter), inputs, NUM_TOKENS).generation
                own = generation.token_ids
                assert [t for t in own if t != EOS] == [t for t in expected if t != EOS], kind
                assert generation.fell_back is None
                if kind == "itself" and name != "timestamps":  # drafts know nothing of suppressed tokens
                    assert max(r.verdict.num_accepted for r in generation.rounds) > 1
            truth, theirs = (f(target, inputs, max_new_tokens=NUM_TOKENS) for f in (reference, own_generate))
            assert truth.token_ids == theirs.token_ids == own
            torch.testing.assert_close(truth.rows, theirs.rows, atol=1e-4, rtol=1e-4)


def test_the_decoder_begins_as_generate_does(target: Target) -> None:
    def begins(**generation: Any) -> list[int]:
        with configured(target, **generation):
            return encode(target, "", audio=noise(1)).token_ids

    task, plain = IDS["<|transcribe|>"], IDS["<|notimestamps|>"]
    assert begins() == [START]
    assert begins(**GENERATIONS["language"]) == [START, IDS["<|de|>"], IDS["<|translate|>"], plain]
    assert begins(**MULTILINGUAL, language="en") == [START, IDS["<|en|>"], task, plain]
    assert begins(**GENERATIONS["timestamps"]) == [START, IDS["<|en|>"], task]
    assert begins(**GENERATIONS["forced"]) == [START, IDS["<|en|>"], task]
    assert begins(**MULTILINGUAL)[1] in (IDS["<|en|>"], IDS["<|de|>"])
    with pytest.raises(TargetError, match="generation config of tiny:whisper is not one of Whisper: Unsupported lang"):
        begins(**MULTILINGUAL, language="klingon")


def test_what_was_said_before_comes_first(shared: Target) -> None:
    ids = encode(shared, "so", audio=noise(1)).token_ids
    assert ids[0] == IDS["<|startofprev|>"]
    assert ids[-1] == START
    assert shared.tokenizer.decode(ids[1:-1]) == " so"


def test_silence_that_would_be_left_out_is_refused(target: Target) -> None:
    with configured(target, no_speech_threshold=0.6), pytest.raises(TargetError, match=r"no_speech_threshold=0\.6"):
        Decoder(target, NoDrafter()).generate("", audio=noise(1), max_new_tokens=3)


def test_another_recording_gives_other_features(shared: Target) -> None:
    one, other = (shared.prefill(prompt(shared, seed=seed), (0, 2)).take_features() for seed in (1, 2))
    assert float((one[-1] - other[-1]).abs().max()) > 1e-3


def test_the_recording_is_heard_once_and_its_rows_stay(shared: Target) -> None:
    drafter = BlockDrafter(tiny_head(shared), shared, budget=7)
    inputs = prompt(shared, seed=1)
    with counting(shared.model.model.encoder) as calls:
        decode_ids(Decoder(shared, drafter), inputs, 12)
    assert len(calls) == 1
    state = shared.prefill(inputs)
    before = [layer.keys.clone() for layer in state.cache.layers[shared.num_layers :]]
    assert {keys.shape[2] for keys in before} == {50}
    state.token_ids.append(3)
    shared.verify(state, 3, TokenTree((1, 2), (0, 0), (1, 1)))
    shared.commit(state, [0], [7])
    after = [layer.keys for layer in state.cache.layers[shared.num_layers :]]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_reuse_of_what_was_said_before(shared: Target) -> None:
    decoder = Decoder(shared, BlockDrafter(tiny_head(shared), shared, budget=7)).with_prefixes(16)
    for text, seed, reused, encoded in (("so we said", 1, 0, 1), ("so we did", 1, 8, 0), ("so we did", 2, 0, 1)):
        with counting(shared.model.model.encoder) as calls:
            done = decoder.generate(text, audio=noise(seed), max_new_tokens=8)
        assert (done.num_reused, len(calls)) == (reused, encoded)
        assert done.token_ids == hf_generate(shared, encode(shared, text, audio=noise(seed)), 8)
        assert done.fell_back is None


def test_generate_ids_takes_what_the_processor_returns(shared: Target) -> None:
    features = dict(shared.processor(noise(4), sampling_rate=16_000, return_tensors="pt"))
    decoder = Decoder(shared, NoDrafter())
    expected = [START, *transcribed(shared, 4)]
    assert decoder.generate_ids(**features, max_new_tokens=NUM_TOKENS)[0].tolist() == expected
    begun = torch.tensor([expected[:4]])
    out = decoder.generate_ids(**features, decoder_input_ids=begun, max_new_tokens=NUM_TOKENS - 3)
    assert out[0].tolist() == expected


def test_the_context_is_that_of_the_decoder(shared: Target) -> None:
    assert shared.context_length == 448
    done = Decoder(shared, NgramDrafter(shared, NgramSettings(), budget=8)).generate(
        "", audio=noise(1), max_new_tokens=600, ignore_eos=True
    )
    assert (done.num_tokens, done.finish_reason) == (447, "length")


def test_bfloat16_hears_too(shared: Target) -> None:
    target = tiny_target("whisper", dtype=torch.bfloat16)
    done = Decoder(target, NoDrafter()).generate("", audio=noise(1), max_new_tokens=6)
    assert done.token_ids == hf_generate(target, bfloat16(encode(target, "", audio=noise(1))), 6)


def bfloat16(inputs: Any) -> Any:
    inputs.tensors["input_features"] = inputs.tensors["input_features"].bfloat16()
    return inputs


def test_it_opens_from_a_folder_and_drafts_with_another(tmp_path: Any) -> None:
    for name, options in (("large", {}), ("small", {"seed": 3, "num_hidden_layers": 2})):
        made = tiny_target("whisper", **options)
        save_target(made, tmp_path / name)
    target = open_target(str(tmp_path / "large"))
    drafter = TwoModelDrafter.bind(str(tmp_path / "small"), TwoModelSettings(), target)
    assert drafter.model.num_layers == 2
    done = Decoder(target, drafter).generate("", audio=noise(5), max_new_tokens=NUM_TOKENS)
    assert [t for t in done.token_ids if t != EOS] == transcribed(target, 5)
    assert done.fell_back is None


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("",), {}, "there is no audio; give audio=…, or --audio FILE"),
        (("",), {"audio": noise(1, 16_001)}, "has 1.0 s and tiny:whisper hears 1 s at a time; cut it"),
        (("",), {"audio": noise(1), "system": "s"}, "no messages, images or tools"),
        (([{"role": "user", "content": "x"}],), {"audio": noise(1)}, "no messages, images or tools"),
        (("<|en|>",), {"audio": noise(1)}, "disallowed special token: <|en|>"),
        (("",), {"audio": "/no/such.wav"}, "such.wav"),
    ],
)
def test_what_cannot_be_heard_is_named(
    shared: Target, arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        encode(shared, *arguments, **options)
    assert message in str(error.value)


def test_other_targets_take_no_audio(qwen3: Target) -> None:
    with pytest.raises(InputError, match="tiny:qwen3 takes no audio; drop the audio or choose a speech model"):
        encode(qwen3, "x", audio=noise(1))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"input_ids": torch.tensor([[START]])}, "hears and does not read: input_features is missing"),
        ({"input_features": torch.zeros(1, 8, 99)}, r"must be \(1, 8, 100\) floating point, got \(1, 8, 99\)"),
        ({"input_features": torch.zeros(1, 8, 100).long()}, "got .* torch.int64; process the audio again"),
        ({"input_features": [1]}, "got list"),
        ({"input_features": torch.full((1, 8, 100), torch.nan)}, "input_features holds NaN"),
    ],
)
def test_tensors_that_are_no_recording_are_refused(shared: Target, tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Decoder(shared, NoDrafter()).generate_ids(**tensors)


def test_a_draft_model_of_other_spectrograms_is_refused(shared: Target) -> None:
    other = tiny_target("whisper")
    other.model.config.num_mel_bins = 16
    with pytest.raises(InputError, match="takes audio with num_mel_bins 16, the target with 8"):
        TwoModelDrafter(other, shared, TwoModelSettings())


def test_suppressed_tokens_are_said_once(target: Target) -> None:
    with configured(target, suppress_tokens=[1]), pytest.warns(OneglanceWarning, match="SuppressTokensLogitsProcessor"):
        Decoder(target, NoDrafter()).generate("", audio=noise(1), max_new_tokens=3)
