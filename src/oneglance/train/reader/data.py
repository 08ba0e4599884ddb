"""Micro-batches of one source: pixels, token ids and the labels of every vision cell."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Encoding
from torch import Tensor

from oneglance.tasks.pages.page import SHEET, SQUARE, Page, Sheet
from oneglance.tasks.pages.pick import Pick
from oneglance.tasks.pages.scenes import KINDS
from oneglance.tasks.pages.words import COLOURS
from oneglance.tasks.synthetic import SEEDS, sheet
from oneglance.train.reader.align import token_points
from oneglance.train.reader.drills import drill
from oneglance.train.reader.recipe import Phase, Recipe
from oneglance.train.reader.tokens import Encoder

PATCH: Final = 16
CELL: Final = 32
NUM_COLUMNS: Final = 8
"""Sub-columns of a cell, 4 px each, that carry one character label."""
COLUMN: Final = CELL // NUM_COLUMNS
NUM_CHARS: Final = 95
LENGTHS: Final = {SQUARE: 144, SHEET: 264}
"""Longest prompt and answer, tokens."""
STEP: Final = 8
"""Rows are padded to a multiple of this: few shapes, for which kernels are built once."""
TALL: Final = frozenset({"docvqa", "drill_tall"})
KIND_IDS: Final = {name: index + 1 for index, name in enumerate(KINDS)}
COLOUR_IDS: Final = {name: index + 1 for index, name in enumerate(COLOURS)}


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: B pages of P patches and C cells, padded to T tokens."""

    size: tuple[int, int]
    vision_only: bool  # whether the answers are left out
    patches: Tensor  # (B, P, 768) in [-1, 1]
    ids: Tensor  # (B, T)
    labels: Tensor  # (B, T), the id that row t predicts, -1 where nothing is asked
    pointers: Tensor  # (B, T), the cell that shows what row t predicts, -1 where none does
    chars: Tensor  # (B, C, 8), 0 for blank
    objects: Tensor  # (B, C, 2), kind and colour, 0 for none
    piece_at: Tensor  # (M,), flat index (page, cell, sub-column) of a piece's first character
    piece_ids: Tensor  # (M,)


class _Row(NamedTuple):
    """A page with its prompt's ids and its answer's tokens."""

    drawn: Sheet
    prompt: list[int]
    answer: Encoding


class Source:
    """Draws the micro-batch with the key (seed, step, index)."""

    def __init__(self, recipe: Recipe, encoder: Encoder) -> None:
        self.recipe, self.encoder = recipe, encoder

    def batch(self, phase: Phase, step: int, index: int) -> Batch:
        """The same pages for the same key, whoever draws them."""
        rng = random.Random(f"{self.recipe.seed}/{step}/{index}")
        vision_only = phase.vision_only or rng.random() < phase.vision_share
        tall = rng.random() < self._tall_share(phase)
        names = [name for name in phase.mixture if (name in TALL) == tall]
        name = rng.choices(names, [phase.mixture[name] for name in names])[0]
        count = self.recipe.sheet_batch if tall else self.recipe.square_batch
        size = SHEET if tall else SQUARE
        rows: list[_Row] = []
        num_cells = size[0] * size[1] // CELL**2
        while len(rows) < count:
            drawn = self._draw(name, phase, rng.randrange(2**40 - 2**20))
            prompt = self.encoder.prompt(drawn.prompt, num_cells)
            encoding = self.encoder.answer(drawn.answer)
            if vision_only or len(prompt) + len(encoding.ids) < LENGTHS[size]:
                rows.append(_Row(drawn, prompt, encoding))
        return self._collate(rows, size, vision_only=vision_only)

    def _tall_share(self, phase: Phase) -> float:
        """The share of tall micro-batches that gives the mixture by samples."""
        tall = sum(v for k, v in phase.mixture.items() if k in TALL) / self.recipe.sheet_batch
        square = sum(v for k, v in phase.mixture.items() if k not in TALL) / self.recipe.square_batch
        return tall / (tall + square)

    def _draw(self, name: str, phase: Phase, number: int) -> Sheet:
        if name in ("drill", "drill_tall"):
            pick = Pick(f"drill/{number}", "train")
            return drill(pick, lines=phase.drill_lines, tall=name == "drill_tall")
        return sheet(name, SEEDS["train"][number], split="train")

    def _collate(self, rows: list[_Row], size: tuple[int, int], *, vision_only: bool) -> Batch:
        longest = max(len(row.prompt) + len(row.answer.ids) + 1 for row in rows)
        length = min(-(-longest // STEP) * STEP, LENGTHS[size])
        ids = torch.zeros(len(rows), length, dtype=torch.long)
        labels, pointers = (torch.full((len(rows), length), -1) for _ in range(2))
        chars, objects, piece_at, piece_ids = [], [], [], []
        for row, (drawn, prompt, answer) in enumerate(rows):
            text = (prompt + answer.ids + [self.encoder.end_id])[:length]
            ids[row, : len(text)] = torch.tensor(text)
            first, last = len(prompt) - 1, len(text) - 1
            labels[row, first:last] = torch.tensor(text[first + 1 :])
            cells = [-1 if at is None else _place(drawn.page, *at) // NUM_COLUMNS for at in token_points(drawn, answer)]
            pointers[row, first : first + len(cells)] = torch.tensor(cells, dtype=torch.long)[: length - first]
            chars.append(char_labels(drawn.page))
            objects.append(object_labels(drawn.page))
            start = row * chars[-1].shape[0] * NUM_COLUMNS
            for place, id_ in piece_labels(drawn.page, self.encoder):
                piece_at.append(start + place)
                piece_ids.append(id_)
        return Batch(
            size=size,
            vision_only=vision_only,
            patches=torch.from_numpy(np.stack([patchify(row.drawn.page.image) for row in rows])),
            ids=ids,
            labels=labels,
            pointers=pointers,
            chars=torch.from_numpy(np.stack(chars)),
            objects=torch.from_numpy(np.stack(objects)),
            piece_at=torch.tensor(piece_at, dtype=torch.long),
            piece_ids=torch.tensor(piece_ids, dtype=torch.long),
        )


def patchify(image: Image.Image) -> NDArray[np.float32]:
    """A page as patches in the processor's order, one temporal frame. Returns (P, 768)."""
    pixels = np.asarray(image, dtype=np.float32) / 127.5 - 1
    height, width, _ = pixels.shape
    grid = pixels.reshape(height // CELL, 2, PATCH, width // CELL, 2, PATCH, 3)
    return np.ascontiguousarray(grid.transpose(0, 3, 1, 4, 6, 2, 5)).reshape(-1, 3 * PATCH * PATCH)


def _place(page: Page, x: float, y: float) -> int:
    """Flat index (cell, sub-column) of a point."""
    width, height = page.image.size
    column = min(max(int(x // COLUMN), 0), width // COLUMN - 1)
    row = min(max(int(y // CELL), 0), height // CELL - 1)
    return row * (width // COLUMN) + column


def char_labels(page: Page) -> NDArray[np.int64]:
    """The character in each 4-px sub-column of each cell, 0 for blank. Returns (C, 8)."""
    width, height = page.image.size
    flat = np.zeros(width * height // (CELL * COLUMN), dtype=np.int64)
    for glyph in page.glyphs:
        first = _place(page, glyph.left + COLUMN / 2 - 0.01, glyph.middle)
        last = _place(page, glyph.right - COLUMN / 2 - 0.01, glyph.middle)
        flat[first : max(first, last) + 1] = ord(glyph.char) - 32
    return flat.reshape(-1, NUM_COLUMNS)


def object_labels(page: Page) -> NDArray[np.int64]:
    """Kind and colour of the object on each cell's middle, 0 for none. Returns (C, 2)."""
    width, height = page.image.size
    grid = np.zeros((height // CELL, width // CELL, 2), dtype=np.int64)
    for mark in page.marks:
        left, top, right, bottom = (round(edge / CELL) for edge in mark.box)  # cells whose middle is inside
        rows, columns = slice(top, max(bottom, top + 1)), slice(left, max(right, left + 1))
        grid[rows, columns] = (KIND_IDS[mark.kind], COLOUR_IDS[mark.colour])
    return grid.reshape(-1, 2)


def piece_labels(page: Page, encoder: Encoder) -> list[tuple[int, int]]:
    """Where each word piece begins, as (flat place, id)."""
    found, start = [], 0
    for word in page.words:
        for offset, id_ in encoder.pieces(word.text):
            glyph = page.glyphs[start + offset]
            found.append((_place(page, glyph.left + 1, glyph.middle), id_))
        start += len(word.text)
    return found
