"""Draw the contact sheet of the built-in suite: `python scripts/contact_sheet.py docs/img/suite.png`."""

from __future__ import annotations

import sys

from PIL import Image

from oneglance.tasks.synthetic import TASKS, examples

COLUMNS, GAP = 4, 8


def main(path: str) -> None:
    """Four evaluation pages of each family, one family per row."""
    rows = [[example.image for example in examples(task, split="eval", limit=COLUMNS)] for task in TASKS]
    height = sum(row[0].height + GAP for row in rows) + GAP
    sheet = Image.new("RGB", (COLUMNS * (256 + GAP) + GAP, height), (128, 128, 128))
    top = GAP
    for row in rows:
        for column, image in enumerate(row):
            sheet.paste(image, (GAP + column * (256 + GAP), top))
        top += row[0].height + GAP
    small = sheet.resize((sheet.width * 3 // 4, sheet.height * 3 // 4), Image.Resampling.LANCZOS)
    small.quantize(200, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1])
