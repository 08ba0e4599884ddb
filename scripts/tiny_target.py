"""Make an HF folder of a tiny target with random weights, for the cross-attention rows of docs/law.md.

python scripts/tiny_target.py mllama OUT     # or another family of oneglance.testing: qwen3_vl, llama, whisper, …
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from oneglance.testing import FAMILIES, tiny_target


def main(arguments: list[str]) -> None:
    """Make the folder whole, or not at all."""
    if len(arguments) != 2 or arguments[0] not in FAMILIES:
        raise SystemExit(f"{__doc__}\nfamilies: {', '.join(FAMILIES)}")
    out = Path(arguments[1])
    if out.exists():
        raise SystemExit(f"{out} exists; choose another folder, or use it as it is")
    target = tiny_target(arguments[0])
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    target.model.save_pretrained(partial)
    target.processor.save_pretrained(partial)
    partial.rename(out)
    print(out)


if __name__ == "__main__":
    main(sys.argv[1:])
