"""oneglance: fast lossless decoding of vision-language models.

A draft head fills a block of future tokens in one pass over the target's own hidden states, the best prefixes form a
tree, and the unmodified target verifies the whole tree in one pass and keeps exactly what it would have written.

    >>> import oneglance
    >>> decoder = oneglance.load()
    >>> decoder.generate("Transcribe the document.", images=["page.png"]).text
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oneglance.core import Generation, InputError, OneglanceError, OneglanceWarning, Round, SamplingParams
    from oneglance.decoder import Decoder, Step, Stream, load

__version__ = "0.1.0"

__all__ = [
    "Decoder",
    "Generation",
    "InputError",
    "OneglanceError",
    "OneglanceWarning",
    "Round",
    "SamplingParams",
    "Step",
    "Stream",
    "load",
]

_HOMES = {
    "Decoder": "oneglance.decoder",
    "Step": "oneglance.decoder",
    "Stream": "oneglance.decoder",
    "load": "oneglance.decoder",
}


def __getattr__(name: str) -> Any:
    """Public names are imported on first use, so that importing the package does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "oneglance.core")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
