"""Any image source → one normalised RGB image, or an ``ImageError`` that names the fix.

``load_image`` takes paths, http(s) URLs, data URIs, base64, bytes, PIL images and numpy arrays. Whatever the route, the
result has EXIF orientation applied, transparency laid over white and three 8-bit channels, so equal pictures give equal
pixels (and equal ``image_sha256``). Size limits are checked on the header, before anything is decoded.

A string may name a local file. A server that takes strings from strangers passes on only URLs and data URIs.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import io
import os
import re
import stat
import warnings
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote_to_bytes

import numpy as np
from PIL import Image, ImageOps
from PIL.TiffImagePlugin import PHOTOMETRIC_INTERPRETATION, TiffImageFile

from oneglance.core import ImageError, LargeImageError, OneglanceWarning
from oneglance.fetch import fetch, too_long

ImageSource: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Image.Image | np.ndarray"

MAX_BYTES = 50 * 2**20
MAX_PIXELS = 64_000_000  # below the size at which Pillow itself complains
MAX_ASPECT = 200  # the processors of the Qwen family refuse more
YCBCR = 6  # as TIFF counts colour spaces

# Raster formats that Pillow decodes itself; others may start helper programs (EPS). JPEG includes MPO.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM")
# How files in these formats begin; AVIF and JPEG 2000 boxes have their name after a four-byte length.
MAGIC = re.compile(
    rb"\x89PNG|\xff\xd8\xff|RIFF|GIF8|BM|II[*+]|MM\0[*+]|P[1-7]\s|\xff\x4f\xff\x51|.{4}(?:ftyp|jP )", re.DOTALL
)
LOOKALIKES = {
    (b"%pdf",): ("is a PDF", "`oneglance run` reads its pages, or render one to PNG first"),
    (b"<svg", b"<?xml"): ("is SVG or XML", "render it to PNG first"),
    (b"<!doctype", b"<html"): ("is a web page, not an image", "pass the address of the image itself"),
    (b"version https://git-lfs",): ("is a git-LFS pointer", "run `git lfs pull`"),
}
NAME_MAX = 255  # characters of a path that a person may have meant
BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")


def load_image(
    source: ImageSource,
    *,
    allow_private_urls: bool = False,
    max_bytes: int = MAX_BYTES,
    max_pixels: int = MAX_PIXELS,
) -> Image.Image:
    """One RGB image from any source.

    Args:
        source: a path; an http(s) URL; a data URI; base64; encoded bytes; a PIL image (its current frame); a numpy
            array (H, W), (H, W, C) or (C, H, W) with 1 to 4 channels, uint8, uint16, bool or floats in [0, 1].
        allow_private_urls: also fetch from loopback, private and link-local addresses.
        max_bytes: largest encoded image, in bytes.
        max_pixels: largest width × height.

    Returns:
        A new image of mode RGB without metadata; of an animation, the first frame (with an ``OneglanceWarning``).

    Raises:
        ImageError: anything else; the message is one line.
    """
    if isinstance(source, Image.Image):
        return _normalise(source, "the image", max_pixels)
    if isinstance(source, np.ndarray):
        return _normalise(_from_array(source, max_pixels), "the array", max_pixels)
    label = _label(source)
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
    elif isinstance(source, os.PathLike):
        data = _read_file(Path(source), label, max_bytes)
    elif isinstance(source, str):
        data = _read_string(source.strip(), label, allow_private_urls=allow_private_urls, max_bytes=max_bytes)
    else:
        raise ImageError(
            f"cannot read an image from {type(source).__name__}; pass a path, URL, data URI, base64, bytes, "
            "PIL image or numpy array"
        )
    if len(data) > max_bytes:
        raise too_long(label, max_bytes)
    return _decode(data, label, max_pixels)


def image_sha256(image: Image.Image) -> str:
    """Hex SHA-256 of the normalised pixels and their size: equal for equal pictures, whatever file they came from."""
    rgb = _normalise(image, "the image", max_pixels=2**62)
    return hashlib.sha256(f"{rgb.width}x{rgb.height} RGB\n".encode() + rgb.tobytes()).hexdigest()


# Sources ------------------------------------------------------------------------------------------------------------


def _label(source: object) -> str:
    """How messages name a source: one short line."""
    if isinstance(source, bytes | bytearray | memoryview):
        return f"the image ({len(source)} bytes)"
    text = str(source).strip()
    if text.startswith("data:"):
        return "the data URI"
    return repr(text if len(text) <= 80 else text[:60] + "…" + text[-15:])


def _read_string(text: str, label: str, *, allow_private_urls: bool, max_bytes: int) -> bytes:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?", text)
    kind = scheme[1].lower() if scheme else ""
    if kind in ("http", "https"):
        return fetch(text, label, allow_private_urls=allow_private_urls, max_bytes=max_bytes)
    if kind == "data":
        return _read_data_uri(text, label, max_bytes)
    if scheme and scheme[2]:
        raise ImageError(f"{label}: only http and https URLs are fetched; pass a path instead")
    if text and os.path.lexists(path := os.path.expanduser(text)):
        return _read_file(Path(path), label, max_bytes)
    packed = "".join(text.split())
    if BASE64.fullmatch(packed) and len(packed.rstrip("=")) % 4 != 1:
        data = _decode_base64(packed, label, max_bytes)
        if MAGIC.match(data):
            return data
    if 0 < len(text) <= NAME_MAX:
        raise ImageError(f"there is no file {label}; check the path")
    raise ImageError(f"{label} is neither an existing file nor a base64 image; check the path")


def _read_file(path: Path, label: str, max_bytes: int) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ImageError(f"{label} is {kind}; pass one image file")
        if status.st_size > max_bytes:
            raise too_long(label, max_bytes)
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except FileNotFoundError:
        raise ImageError(f"{label} does not exist; check the path") from None
    except (OSError, ValueError) as error:
        raise ImageError(f"{label} cannot be read ({error}); check the path and its permissions") from None


def _read_data_uri(text: str, label: str, max_bytes: int) -> bytes:
    header, comma, body = text.partition(",")
    if not comma:
        raise ImageError(f"{label} has no comma; it must read data:image/png;base64,<base64>")
    if header.lower().endswith(";base64"):
        return _decode_base64("".join(unquote_to_bytes(body).decode("ascii", "replace").split()), label, max_bytes)
    if len(body) > 3 * max_bytes:
        raise too_long(label, max_bytes)
    return unquote_to_bytes(body)


def _decode_base64(packed: str, label: str, max_bytes: int) -> bytes:
    if len(packed) // 4 * 3 > max_bytes + 2:
        raise too_long(label, max_bytes)
    plain = packed.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ImageError(f"{label} is not valid base64; encode the whole file") from None


def _from_array(array: np.ndarray, max_pixels: int) -> Image.Image:
    shape = "×".join(map(str, array.shape))
    if array.ndim == 3 and array.shape[2] not in (1, 2, 3, 4) and array.shape[0] in (1, 2, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (2, 3, 4)):
        raise ImageError(
            f"an array of shape {shape} is no image; pass (H, W), (H, W, C) or (C, H, W) with C from 1 to 4"
        )
    _check_size(array.shape[1], array.shape[0], "the array", max_pixels)
    return Image.fromarray(np.ascontiguousarray(_to_uint8(array, "the array")))


def _to_uint8(values: np.ndarray, label: str) -> np.ndarray:
    """8-bit values from uint8, uint16, bool, or floats in [0, 1], of any shape."""
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.bool_:
        return values.astype(np.uint8) * 255
    if values.dtype == np.uint16:
        return np.rint(values / 257.0).astype(np.uint8)
    if not np.issubdtype(values.dtype, np.floating):
        raise ImageError(f"{label} has values of type {values.dtype}; cast them to uint8")
    if not (np.all(values >= 0) and np.all(values <= 1)):  # false for NaN too
        raise ImageError(f"{label} has floats outside [0, 1] or NaN; divide by 255 or cast to uint8")
    return np.rint(values.astype(np.float64) * 255).astype(np.uint8)


# Decoding -----------------------------------------------------------------------------------------------------------


def _check_size(width: int, height: int, label: str, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise ImageError(f"{label} is {width}×{height} pixels; pass an image with at least one pixel")
    if width * height > max_pixels:
        raise LargeImageError(
            f"{label} is {width}×{height} pixels, more than {max_pixels}", "scale it down or raise max_pixels"
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(f"{label} is too thin ({width}×{height} pixels, at most {MAX_ASPECT}:1); crop or pad it")


def _decode(data: bytes, label: str, max_pixels: int) -> Image.Image:
    if not data:
        raise ImageError(f"{label} is empty; save or download it again")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise LargeImageError(f"{label} has more than {max_pixels} pixels", "scale it down") from None
    except Exception:  # decoders fail in any way on strange bytes
        what, fix = _what_is_wrong(data)
        raise ImageError(f"{label} {what}", fix) from None
    with image:
        if _has_more_frames(image):
            message = f"{label} is animated or has several pages; only the first is read"
            warnings.warn(message, OneglanceWarning, stacklevel=3)
        return _normalise(image, label, max_pixels)


def _has_more_frames(image: Image.Image) -> bool:
    with contextlib.suppress(Exception):  # a damaged second frame is no reason to refuse the first
        return bool(getattr(image, "is_animated", False)) and image.format != "MPO"
    return False


def _what_is_wrong(data: bytes) -> tuple[str, str]:
    """What bytes are that are no image, and what to do."""
    start = data[:512].lstrip().lower()
    for opening, complaint in LOOKALIKES.items():
        if start.startswith(opening):
            return complaint
    if MAGIC.match(data):
        return "is damaged or in an unsupported variant of its format", "save it again as PNG or JPEG"
    return "is not an image in a supported format", "save it as PNG or JPEG"


def _is_misread(image: Image.Image) -> bool:
    """Pillow before 13 takes three bytes of raw YCbCr for four (its issue 9770), in some files without an error."""
    if not isinstance(image, TiffImageFile) or image.tag_v2.get(PHOTOMETRIC_INTERPRETATION) != YCBCR:
        return False
    return image.mode == "RGB" and any(tile[0] == "raw" for tile in image.tile)


def _normalise(image: Image.Image, label: str, max_pixels: int) -> Image.Image:
    _check_size(image.width, image.height, label, max_pixels)
    if _is_misread(image):
        raise ImageError(f"{label} has raw YCbCr pixels", "install pillow>=13 or save it as PNG")
    try:
        image.load()
    except Exception as error:  # decoders fail in any way on strange bytes
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ImageError(f"{label} is truncated or damaged ({reason}); save or download it again") from None
    try:
        upright = ImageOps.exif_transpose(image)
    except Exception:  # damaged EXIF data says nothing about orientation
        upright = image
    try:
        rgb = _to_rgb(upright, label)
    except (ValueError, KeyError):
        raise ImageError(f"{label} has pixels of mode {image.mode}, which cannot become RGB; save it as RGB") from None
    rgb.info = {}
    return rgb


def _to_rgb(image: Image.Image, label: str) -> Image.Image:
    """A new RGB image. 32-bit integers count as 8-bit values unless one is above 255, then as 16-bit values."""
    if image.mode == "F":
        image = Image.fromarray(_to_uint8(np.asarray(image), label))
    elif image.mode.startswith("I"):
        values = np.asarray(image).clip(0, 65535).astype(np.uint16)
        is_deep = image.mode.startswith("I;16") or int(values.max()) > 255
        image = Image.fromarray(_to_uint8(values, label) if is_deep else values.astype(np.uint8))
    elif image.has_transparency_data:
        image = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")
        canvas = Image.new("RGB", image.size, "white")
        canvas.paste(image, mask=image.getchannel("A"))
        return canvas
    return image.convert("RGB")
