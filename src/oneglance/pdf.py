"""Pages of PDF files as images, by pypdfium2 (``[pdf]``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from oneglance.errors import ImageError, InputError
from oneglance.images import MAX_PIXELS, load_image

DPI = 144
POINTS_PER_INCH = 72


def is_pdf(path: Path) -> bool:
    """Whether a file is a PDF, by its name or its first bytes."""
    if path.suffix.lower() == ".pdf":
        return True
    try:
        with path.open("rb") as file:
            return file.read(5) == b"%PDF-"
    except OSError:
        return False


def num_pages(path: Path) -> int:
    """Pages of a PDF.

    Raises:
        ImageError: it cannot be read.
    """
    with _opened(path) as document:
        count = len(document)
    if not count:
        raise ImageError(f"'{path}' has no pages; leave it out")
    return count


def render_page(path: Path, index: int, *, dpi: int = DPI) -> Image.Image:
    """A page as an RGB image.

    Args:
        path: of the PDF.
        index: of the page, from 0.
        dpi: dots an inch.

    Raises:
        ImageError: it cannot be read or rendered, or is too large at this resolution.
    """
    scale = dpi / POINTS_PER_INCH
    with _opened(path) as document:
        page = document[index]
        try:
            width, height = (side * scale for side in page.get_size())
            if width * height > MAX_PIXELS:
                raise ImageError(
                    f"page {index + 1} of '{path}' has {width:.0f}×{height:.0f} pixels at {dpi} dpi, more than "
                    f"{MAX_PIXELS}; use a lower --dpi"
                )
            return load_image(page.render(scale=scale).to_pil())
        finally:
            page.close()


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        import pypdfium2
    except ImportError as error:
        raise InputError("PDFs need pypdfium2; pip install 'oneglance[pdf]'") from error
    try:
        document = pypdfium2.PdfDocument(path)
    except (pypdfium2.PdfiumError, OSError, ValueError) as error:
        hint = "it needs a password" if "password" in str(error).lower() else "it is damaged or no PDF"
        raise ImageError(f"'{path}' cannot be opened: {hint}; save it again") from error
    try:
        yield document
    except pypdfium2.PdfiumError as error:
        raise ImageError(f"'{path}' cannot be rendered ({error}); save it again") from error
    finally:
        document.close()
