"""Record ``oneglance demo`` for the README, in docs/img/demo.svg.

    .venv/bin/python scripts/record_demo.py

Everything shown is what the command printed in this run. Record on a machine that does nothing else.
"""

from __future__ import annotations

import io
import os
import re
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[1]
os.chdir(ROOT)
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # before transformers is imported

from rich._export_format import CONSOLE_SVG_FORMAT  # noqa: E402
from rich.console import Console  # noqa: E402

from oneglance.commands.demo import PAGE, PROMPT, Page, show  # noqa: E402
from oneglance.commands.options import BUDGET  # noqa: E402
from oneglance.commands.pairs import Duel  # noqa: E402
from oneglance.core import SamplingParams  # noqa: E402
from oneglance.decoder import load  # noqa: E402
from oneglance.targets.chat import encode  # noqa: E402

NUM_PAIRS, WIDTH = 15, 92
COMMAND = f"oneglance demo --pairs {NUM_PAIRS}"
SVG = ROOT / "docs" / "img" / "demo.svg"
# without the web font, so that the picture looks the same offline
SVG_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
SVG_FORMAT = SVG_FORMAT.replace("Fira Code, monospace", "ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace")


def main() -> None:
    """Run the demo once and write the picture."""
    decoder = load(dtype="float32")
    page = Page.of([str(PAGE)], PROMPT)
    duel = Duel(decoder, encode(decoder.target, PROMPT, images=[PAGE]), SamplingParams())
    console = Console(record=True, force_terminal=True, color_system="truecolor", width=WIDTH, height=40)
    console.file = io.StringIO()
    console.print(f"$ [bold]{COMMAND}[/]", highlight=False)
    comparison = show(console, duel, page, num_pairs=NUM_PAIRS, tree="best_first", budget=BUDGET, is_live=False)
    if not comparison.is_identical:
        raise SystemExit("the two arms differ: nothing is recorded")
    text = "\n".join(line.rstrip() for line in console.export_text(clear=False).splitlines())
    SVG.parent.mkdir(parents=True, exist_ok=True)
    console.save_svg(str(SVG), title="oneglance demo", code_format=SVG_FORMAT, unique_id="demo")
    print(text)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
