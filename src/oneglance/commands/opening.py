"""From options to a decoder. What can be wrong is checked before a large target is read."""

from __future__ import annotations

import mimetypes
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneglance.commands import options
from oneglance.core import AnyBudget, InputError, OneglanceWarning, SamplingParams
from oneglance.files import write_atomically

if TYPE_CHECKING:
    from PIL import Image

    from oneglance.decoder import Decoder
    from oneglance.targets.base import Target

MAX_THREADS = 1024


def check_tree(budget: AnyBudget, branch_k: int | None) -> None:
    """Refuse what no tree can have.

    Raises:
        InputError: a number out of range; the message has the options as they are written here.
    """
    from oneglance.drafters.settings import check_budget

    check_budget(1 if budget == "auto" else budget, branch_k, written=as_option)


def budget_of(value: str) -> AnyBudget:
    """Nodes of the tree, or auto.

    Raises:
        InputError: neither.
    """
    if value == "auto":
        return "auto"
    try:
        return int(value)
    except ValueError:
        raise InputError(f"--budget takes a whole number or auto, got {value!r}") from None


def names_of(text: str) -> list[str]:
    """The parts of a comma-separated list."""
    return [name.strip() for name in text.split(",") if name.strip()]


def numbers(option: str, text: str, *, least: int, most: int | None = None) -> list[int]:
    """The whole numbers of a comma-separated list, one at least.

    Raises:
        InputError: something else, none, or one out of bounds.
    """
    try:
        found = [int(part) for part in names_of(text)]
    except ValueError:
        found = []
    if not found:
        raise InputError(f"{option} takes numbers such as {max(3, least)},{max(7, least)}, got {text!r}")
    if min(found) < least or (most is not None and max(found) > most):
        bound = "" if most is None else f" and at most {most}"
        raise InputError(f"{option} must be at least {least}{bound}, got {text!r}")
    return found


def note_foreign(target: str, images: Sequence[Image.Image] | None = None) -> None:
    """Say that the built-in model reads its own kind of page only, where images of another size are to be read.

    Args:
        target: as named.
        images: to be read; None where they are not open yet, and whatever the user has counts as foreign.
    """
    if target != options.BUILTIN:
        return
    from oneglance.tasks.pages.page import SHEET, SQUARE

    if images is None or any(image.size not in (SQUARE, SHEET) for image in images):
        message = (
            f"{target} reads only drawn pages like those of the built-in suite; for others give --target and --head "
            "(oneglance heads lists some)"
        )
        warnings.warn(message, OneglanceWarning, stacklevel=2)


def note_unasked(target: str, prompt: str, images: Sequence[Image.Image]) -> None:
    """Say that the built-in model has nothing to answer where there is no page, or no question about it."""
    missing = "a prompt" if images else "--image"
    if target == options.BUILTIN and not (prompt and images):
        message = f"{target} answers questions about a drawn page; without {missing} its answer means nothing"
        warnings.warn(message, OneglanceWarning, stacklevel=2)


def sampling(
    max_new_tokens: int,
    stop: Sequence[str] | None = None,
    *,
    logit_bias: Sequence[str] | None = None,
    bad_word: Sequence[str] | None = None,
    **options: Any,
) -> SamplingParams:
    """How tokens are chosen and where the text ends.

    Args:
        max_new_tokens: cap.
        stop: stop strings.
        logit_bias: ``id:bias`` each.
        bad_word: strings.
        options: other fields of ``SamplingParams``.

    Raises:
        InputError: a value outside its range, or an empty string.
    """
    if max_new_tokens < 0:
        raise InputError(f"--max-new-tokens must be at least 0, got {max_new_tokens}")
    return SamplingParams(
        max_new_tokens=max_new_tokens,
        stop=tuple(stop or ()),
        logit_bias=dict(_bias(text) for text in logit_bias or ()) or None,
        bad_words=tuple(bad_word or ()) or None,
        **options,
    )


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition(":")
    try:
        return int(token), float(bias)
    except ValueError as error:
        raise InputError(f"--logit-bias takes ID:BIAS, such as 42:-1.5, got {text!r}") from error


def gate(value: str) -> float | Path:
    """δ, 0 where the gate is off, or the calibration file that has it.

    Raises:
        InputError: none of these.
    """
    if value == "off":
        return 0.0
    try:
        return float(value)
    except ValueError:
        if os.path.isfile(value):
            return Path(value)
    raise InputError(f"--gate takes δ in logits, off, or a file that calibrate-gate wrote, got {value!r}")


def delta(margin: float | Path, target: Target) -> float:
    """δ in logits, from what ``gate`` gave, once the target is open.

    Raises:
        InputError: no calibration, or one of another target, dtype, attention or device.
    """
    if not isinstance(margin, Path):
        return margin
    from oneglance.calibrate import delta_of

    return delta_of(margin, target)


def schema(value: str | None) -> str | None:
    """A JSON schema, given as such or as a file.

    Raises:
        InputError: the file cannot be read.
    """
    if value is None or value.lstrip().startswith("{"):
        return value
    try:
        return Path(value).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--json-schema takes a schema or a file with one, and cannot read {value!r}") from error


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def read_images(sources: Sequence[str] | None) -> list[Image.Image]:
    """The images that were named.

    Raises:
        ImageError: one cannot be read.
    """
    from oneglance.images import load_image

    return [load_image(source) for source in sources or ()]


def refuse_path(prompt: str) -> None:
    """Refuse a prompt that is the path of a page: the target would be asked its letters.

    Raises:
        InputError: there is such a file.
    """
    kind = mimetypes.guess_type(prompt)[0] or ""
    if kind.startswith(("image/", "application/pdf")) and os.path.isfile(prompt):
        raise InputError(f"the prompt {prompt!r} is the path of a page; give it after --image, and a prompt besides")


def as_option(name: str, value: str = "") -> str:
    """How an argument is written on a command line."""
    return f"--{name.replace('_', '-')} {value}".rstrip()


def head_name(target: str, head: str | None, drafter: str) -> str | None:
    """The head to load: the one given, or the built-in target's own block head.

    Raises:
        InputError: there is no such target, or it is another one and has no head.
    """
    from oneglance.drafters.settings import head_for
    from oneglance.targets import find, locate

    locate(target)
    found = head_for(target, head, drafter, as_option)
    find(target)
    return found


def set_threads(threads: int | None) -> None:
    """Limit torch's CPU threads."""
    if threads is not None:
        import torch

        if threads > MAX_THREADS:
            raise InputError(f"--threads is at most {MAX_THREADS}, got {threads}; give the number of cores")
        torch.set_num_threads(threads)


def open_decoder(
    target: str,
    head: str | None,
    *,
    drafter: str = "block",
    tree: str = "best_first",
    budget: AnyBudget,
    branch_k: int | None = None,
    dtype: str,
    device: str | None = None,
    device_map: str | None = None,
    attention: str = "sdpa",
    threads: int | None = None,
    fixed_shape: bool = False,
    runner: str = "auto",
) -> Decoder:
    """A decoder for the shared options, which have the same names.

    Raises:
        InputError: something does not exist, does not fit, or is not supported.
    """
    check_tree(budget, branch_k)
    head = head_name(target, head, drafter)
    set_threads(threads)
    from oneglance.decoder import load

    return load(
        target,
        head,
        drafter=drafter,
        tree=tree,
        budget=budget,
        branch_k=branch_k,
        dtype=dtype,
        device=device,
        device_map=device_map,
        attention=attention,
        fixed_shape=fixed_shape,
        runner=runner,
    )
