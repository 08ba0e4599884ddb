"""Any recording → one waveform at a target's rate, or an ``InputError`` that names the fix.

WAV files are read by scipy; other formats want a decoder of their own, which is not ours to ship: the error says how to
convert them.
"""

from __future__ import annotations

import io
import os
import warnings
from math import gcd
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.io import wavfile

from oneglance.core import InputError

AudioSource: TypeAlias = "str | os.PathLike[str] | bytes | NDArray[np.generic]"
Waveform = NDArray[np.float32]

MAX_BYTES = 50 * 2**20
CONVERT = "convert it: ffmpeg -i INPUT -ac 1 -ar 16000 out.wav"


def load_audio(source: AudioSource, *, rate_hz: int) -> Waveform:
    """One channel at ``rate_hz``.

    Args:
        source: a WAV file's path or bytes, at any rate; or a waveform (T,) that has ``rate_hz`` already, floats in
            [-1, 1] or integers of full scale.
        rate_hz: samples a second that are wanted.

    Returns:
        (T,) float32, nominally in [-1, 1]. Channels are averaged.

    Raises:
        InputError: no such file, no WAV, cut off, empty, or not finite.
    """
    if isinstance(source, np.ndarray):
        return _checked(_mono(source, "the waveform"), "the waveform")
    label = "the audio" if isinstance(source, bytes) else repr(os.fspath(source))
    data = source if isinstance(source, bytes) else _read(Path(source), label)
    rate, samples = _decode(data, label)
    return _checked(_resampled(_mono(samples, label), rate, rate_hz), label)


def _read(path: Path, label: str) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{label} is larger than {MAX_BYTES // 2**20} MiB; cut it into shorter pieces")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot read the audio {label}: {reason}") from error


def _decode(data: bytes, label: str) -> tuple[int, NDArray[np.generic]]:
    if not data.startswith((b"RIFF", b"RIFX", b"RF64")) or data[8:12] != b"WAVE":
        raise InputError(f"{label} is not a WAV file; {CONVERT}")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", wavfile.WavFileWarning)  # of chunks that hold no sound, too
            rate, samples = wavfile.read(io.BytesIO(data))
    except Exception as error:  # scipy raises struct.error, ValueError, ZeroDivisionError, … over damaged headers
        raise InputError(f"{label} is a WAV file that cannot be read ({error}); {CONVERT}") from error
    if any("EOF" in str(warning.message) for warning in said):
        raise InputError(f"{label} is cut off: it holds fewer samples than its header says; copy it again")
    if rate <= 0:
        raise InputError(f"{label} says that it has {rate} samples a second; {CONVERT}")
    return int(rate), samples


def _mono(samples: NDArray[np.generic], label: str) -> Waveform:
    """(T,) in [-1, 1] of (T,) or (T, channels), in whatever type WAV files have."""
    if samples.ndim not in (1, 2):
        raise InputError(f"{label} must be (samples,) or (samples, channels), got {samples.shape}")
    kind = samples.dtype.kind
    if kind == "f":
        wide = samples.astype(np.float64)
    elif kind == "u" and samples.dtype.itemsize == 1:  # 8-bit WAV files have their zero at 128
        wide = (samples.astype(np.float64) - 128) / 128
    elif kind == "i":
        wide = samples.astype(np.float64) / 2 ** (8 * samples.dtype.itemsize - 1)
    else:
        raise InputError(f"{label} holds {samples.dtype}; give floats in [-1, 1] or signed integers")
    return (wide if wide.ndim == 1 else wide.mean(axis=1)).astype(np.float32)


def _resampled(waveform: Waveform, rate: int, wanted: int) -> Waveform:
    if rate == wanted or not len(waveform):
        return waveform
    from scipy.signal import resample_poly

    common = gcd(rate, wanted)
    made: Waveform = resample_poly(waveform.astype(np.float64), wanted // common, rate // common).astype(np.float32)
    return made


def _checked(waveform: Waveform, label: str) -> Waveform:
    if not len(waveform):
        raise InputError(f"{label} holds no sound; give at least one sample")
    if not np.isfinite(waveform).all():
        raise InputError(f"{label} holds NaN or infinite samples; {CONVERT}")
    return waveform
