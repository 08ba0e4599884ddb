"""The errors and the warning that this package raises on purpose.

::

    OneglanceError
    ├── InputError            bad input or a mismatched checkpoint; commands exit with 2
    │   ├── ImageError        an image source that cannot become one RGB image
    │   │   └── PrivateUrlError   its URL leads to an address that is not public
    │   ├── HeadError         a draft head that cannot be loaded or does not fit its target
    │   └── TargetError       a target that cannot be verified in packed passes
    └── DraftError            a drafter failed inside a round; decoding goes on without it
"""


class OneglanceError(Exception):
    """Base of every error that this package raises on purpose."""


class InputError(OneglanceError):
    """Bad input; the message is one line that names the fix."""


class ImageError(InputError):
    """An image source that cannot become one RGB image."""


class PrivateUrlError(ImageError):
    """An image URL that leads to a loopback, private or link-local address.

    Args:
        what: the fact, without advice.
        fix: what who calls this package can do about it.
    """

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}; {fix}")
        self.what = what


class HeadError(InputError):
    """A draft head that cannot be loaded or does not fit its target."""


class TargetError(InputError):
    """A target that cannot be opened or cannot be verified in packed passes."""


class DraftError(OneglanceError):
    """A drafter failed inside a round; decoding goes on without it and loses nothing."""


class OneglanceWarning(UserWarning):
    """Something that costs speed or acceptance, never a token."""
