"""The errors and the warning that this package raises on purpose.

::

    OneglanceError
    ├── InputError            bad input or a mismatched checkpoint; commands exit with 2
    │   ├── ImageError        an image source that cannot become one RGB image
    │   │   ├── LargeImageError   it has more bytes or pixels than are allowed
    │   │   └── FetchError        its URL gives nothing
    │   │       └── PrivateUrlError   it leads to an address that is not public
    │   ├── HeadError         a draft head that cannot be loaded or does not fit its target
    │   └── TargetError       a target that cannot be verified in packed passes
    └── DraftError            a drafter failed inside a round; decoding goes on without it
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


class OneglanceError(Exception):
    """Base of every error that this package raises on purpose."""


class InputError(OneglanceError):
    """Bad input; the message is one line that names the fix."""


class ImageError(InputError):
    """An image source that cannot become one RGB image.

    Args:
        what: the fact; with advice that helps anyone, where there is no ``fix``.
        fix: what who calls this package can do about it; others, such as a server's clients, need other advice.
    """

    def __init__(self, what: str, fix: str | None = None) -> None:
        super().__init__(what if fix is None else f"{what}; {fix}")
        self.what, self.fix = what, fix


class LargeImageError(ImageError):
    """An image of more bytes or pixels than are allowed."""


class FetchError(ImageError):
    """An image URL that gives nothing."""


class PrivateUrlError(FetchError):
    """An image URL that leads to a loopback, private or link-local address."""


class HeadError(InputError):
    """A draft head that cannot be loaded or does not fit its target."""


class TargetError(InputError):
    """A target that cannot be opened or cannot be verified in packed passes."""


class DraftError(OneglanceError):
    """A drafter failed inside a round; decoding goes on without it and loses nothing."""


class OneglanceWarning(UserWarning):
    """Something that costs speed or acceptance, never a token."""


def problem(error: ValidationError, kind: type[BaseModel], *, noun: str) -> str:
    """What is wrong with named values, in our words: pydantic's own say nothing of the names that there are.

    Args:
        error: what pydantic found; its first fault is told.
        kind: the model that was to be made; its sections may be models.
        noun: what such a name is called: setting, key.
    """
    fault = error.errors()[0]
    section = fault["loc"][:-1]
    where = ".".join(map(str, fault["loc"]))
    if fault["type"] == "extra_forbidden":
        known = ", ".join(_section(kind, section).model_fields) or "none"
        whose = f"the {noun}s of {'.'.join(map(str, section))}" if section else f"its {noun}s"
        return f"no {noun} {where!r}; {whose}: {known}"
    if fault["type"] == "missing":
        return f"{noun} {where!r} is missing"
    if fault["type"] == "value_error":  # a check of ours, which says what it was given
        text = fault["msg"].removeprefix("Value error, ")
        return f"{where}: {text}" if where else text
    return f"{where}: {fault['msg']}, got {fault['input']!r}"


def _section(kind: type[BaseModel], names: Sequence[int | str]) -> type[BaseModel]:
    """The model that stands at a place in another."""
    for name in names:
        field = kind.model_fields.get(str(name))
        choices = () if field is None else (field.annotation, *get_args(field.annotation))
        kind = next((choice for choice in choices if hasattr(choice, "model_fields")), kind)
    return kind


def first_line(error: BaseException) -> str:
    """The first line of a message that has something on it; the kind of error where none has."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def warn_user(message: str) -> None:
    """Say something that costs speed, where nobody else is there to be told."""
    warnings.warn(message, OneglanceWarning, stacklevel=2)
