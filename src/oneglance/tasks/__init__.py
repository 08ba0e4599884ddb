"""Tasks: pages with a prompt, the true answer and the box of each word; the built-in suite is drawn, not loaded."""

from oneglance.tasks.base import TASKS, Example, Split, WordBox
from oneglance.tasks.synthetic import draw, examples

__all__ = ["TASKS", "Example", "Split", "WordBox", "draw", "examples"]
