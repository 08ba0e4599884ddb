"""``python -m oneglance.train``: the ``train`` command as a module, for ``accelerate launch -m oneglance.train``."""

from __future__ import annotations

import sys
from importlib import import_module

if __name__ == "__main__":  # an entry point: the command line is looked up by name, this room does not depend on it
    sys.exit(import_module("oneglance.__main__").main(["train", *sys.argv[1:]]))
