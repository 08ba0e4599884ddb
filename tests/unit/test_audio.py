"""A recording in any of the forms WAV files have, or an error that names the fix."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import wavfile

from oneglance import audio
from oneglance.audio import load_audio
from oneglance.core import InputError

RATE = 16_000
TONE = np.sin(2 * np.pi * 440 * np.arange(RATE // 4) / RATE)  # a quarter of a second of A


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    buffer = io.BytesIO()
    wavfile.write(buffer, rate, samples)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("encoded", "tolerance"),
    [
        (TONE.astype(np.float32), 1e-6),
        (TONE.astype(np.float64), 1e-6),
        ((TONE * 32767).astype(np.int16), 1e-4),
        ((TONE * (2**31 - 1)).astype(np.int32), 1e-6),
        ((TONE * 127 + 128).astype(np.uint8), 2e-2),
    ],
)
def test_every_sample_type_means_the_same_sound(encoded: np.ndarray, tolerance: float, tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    path.write_bytes(wav(encoded))
    for source in (path, str(path), path.read_bytes()):
        heard = load_audio(source, rate_hz=RATE)
        assert heard.dtype == np.float32
        np.testing.assert_allclose(heard, TONE, atol=tolerance)


def test_channels_are_averaged() -> None:
    stereo = np.stack([TONE, np.zeros_like(TONE)], axis=1).astype(np.float32)
    np.testing.assert_allclose(load_audio(wav(stereo), rate_hz=RATE), TONE / 2, atol=1e-6)
    np.testing.assert_allclose(load_audio(stereo, rate_hz=RATE), TONE / 2, atol=1e-6)


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100, 48_000])
def test_another_rate_is_resampled(rate: int) -> None:
    times = np.arange(rate // 4) / rate
    heard = load_audio(wav(np.sin(2 * np.pi * 440 * times).astype(np.float32), rate), rate_hz=RATE)
    assert abs(len(heard) - RATE // 4) <= 1
    inner = slice(400, 3600)  # the filter rings at both ends
    np.testing.assert_allclose(heard[inner], TONE[inner], atol=5e-3)


def test_a_waveform_is_taken_as_it_is() -> None:
    np.testing.assert_array_equal(load_audio(TONE, rate_hz=RATE), TONE.astype(np.float32))
    np.testing.assert_allclose(load_audio((TONE * 32767).astype(np.int16), rate_hz=RATE), TONE, atol=1e-4)


def test_chunks_that_hold_no_sound_are_passed_over() -> None:
    data = wav(TONE.astype(np.float32)) + b"oddX" + (4).to_bytes(4, "little") + b"note"
    data = data[:4] + (len(data) - 8).to_bytes(4, "little") + data[8:]
    np.testing.assert_allclose(load_audio(data, rate_hz=RATE), TONE, atol=1e-6)


WHOLE = wav((TONE * 1000).astype(np.int16))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("/no/such/file.wav", "cannot read the audio '/no/such/file.wav': No such file"),
        ("nul\0byte", "cannot read the audio"),
        (b"ID3 this is an mp3", "is not a WAV file; convert it: ffmpeg"),
        (b"", "is not a WAV file"),
        (WHOLE[:30], "cannot be read"),
        (WHOLE[:-500], "cut off|cannot be read"),
        (wav(np.zeros(0, np.int16)), "holds no sound"),
        (wav(np.full(9, np.nan, np.float32)), "NaN or infinite"),
        (np.zeros((2, 3, 4)), r"must be \(samples,\) or \(samples, channels\), got \(2, 3, 4\)"),
        (np.zeros(4, complex), "holds complex128; give floats"),
        (np.zeros(4, bool), "holds bool"),
        (np.zeros(0), "holds no sound"),
    ],
)
def test_what_is_no_recording_is_named(source: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        load_audio(source, rate_hz=RATE)
    assert "\n" not in str(error.value)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audio, "MAX_BYTES", 100)
    path = tmp_path / "long.wav"
    path.write_bytes(WHOLE)
    with pytest.raises(InputError, match=r"larger than .* cut it into shorter pieces"):
        load_audio(path, rate_hz=RATE)
