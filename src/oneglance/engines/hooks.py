"""What a plugin relies on inside an engine, by name and signature, checked before anything is touched."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Hook:
    """One place inside an engine.

    Attributes:
        place: ``module:Name`` or ``module:Class.method``.
        parameters: names of a callable's parameters, in order and complete; None where only the name counts.
    """

    place: str
    parameters: tuple[str, ...] | None = None

    def find(self) -> Any:
        """What stands there.

        Raises:
            ImportError, AttributeError: nothing does.
        """
        module, path = self.place.split(":")
        found: Any = import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        return found

    def problem(self) -> str | None:
        """Why a plugin cannot rely on it, or None."""
        try:
            found = self.find()
        except (ImportError, AttributeError) as error:
            return f"{self.place} is gone ({error})"
        except Exception as error:  # an engine's module may fail at import in any way, and a check must not
            return f"{self.place} cannot be read ({type(error).__name__}: {error})"
        if self.parameters is None:
            return None
        try:
            names = tuple(inspect.signature(found).parameters)
        except (TypeError, ValueError):
            return f"{self.place} is no function any more"
        if names != self.parameters:
            return f"{self.place} takes ({', '.join(names)}), expected ({', '.join(self.parameters)})"
        return None


def problems(hooks: Iterable[Hook]) -> list[str]:
    """What does not hold, one line a hook."""
    return [problem for hook in hooks if (problem := hook.problem()) is not None]
