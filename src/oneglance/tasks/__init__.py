"""Tasks: pages with a prompt, the true answer and the box of each word."""

from oneglance.tasks.base import Example, WordBox
from oneglance.tasks.synthetic import TASKS, draw, examples

__all__ = ["TASKS", "Example", "WordBox", "draw", "examples"]
