"""Where the program starts, also as ``python -m oneglance``: Ctrl-C is quiet while commands are imported as well, and
SIGTERM ends what runs as an error would, so that a terminal gets its cursor back.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code. The entry point of ``oneglance``."""

    def run() -> int:
        from oneglance import cli

        return cli.main(argv)

    return guarded(run)


def guarded(run: Callable[[], int]) -> int:
    """A program's exit code, also where a signal ends it."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        return run()
    except KeyboardInterrupt:
        return 128 + 2  # as a shell reports SIGINT


def _terminate(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
