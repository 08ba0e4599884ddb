"""Where the program starts, also as ``python -m oneglance``: Ctrl-C is quiet while commands are imported as well."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return its exit code. The entry point of ``oneglance``."""
    try:
        from oneglance.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 128 + 2  # as a shell reports SIGINT


if __name__ == "__main__":
    sys.exit(main())
