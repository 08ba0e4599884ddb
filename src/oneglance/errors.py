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

import warnings


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


def warn_user(message: str) -> None:
    """Say something that costs speed, where nobody else is there to be told."""
    warnings.warn(message, OneglanceWarning, stacklevel=2)
