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
import http.client
import io
import ipaddress
import os
import re
import socket
import ssl
import stat
import threading
import warnings
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult, quote, unquote_to_bytes, urljoin, urlsplit

import numpy as np
from PIL import Image, ImageOps

from oneglance.core import ImageError, OneglanceWarning, PrivateUrlError

ImageSource: TypeAlias = "str | os.PathLike[str] | bytes | bytearray | memoryview | Image.Image | np.ndarray"

MAX_BYTES = 50 * 2**20
MAX_PIXELS = 64_000_000  # below the size at which Pillow itself complains
MAX_ASPECT = 200  # the processors of the Qwen family refuse more
URL_TIMEOUT_S = 20.0
MAX_REDIRECTS = 5
URL_SAFE = "/%:@!$&'()*+,;=~-._?"

# Raster formats that Pillow decodes itself; others may start helper programs (EPS). JPEG includes MPO.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "JPEG2000", "PPM")
# How files in these formats begin; AVIF and JPEG 2000 boxes have their name after a four-byte length.
MAGIC = re.compile(
    rb"\x89PNG|\xff\xd8\xff|RIFF|GIF8|BM|II[*+]|MM\0[*+]|P[1-7]\s|\xff\x4f\xff\x51|.{4}(?:ftyp|jP )", re.DOTALL
)
LOOKALIKES = {
    (b"%pdf",): "is a PDF; `oneglance run` reads its pages, or render one to PNG first",
    (b"<svg", b"<?xml"): "is SVG or XML; render it to PNG first",
    (b"<!doctype", b"<html"): "is a web page, not an image; pass the address of the image itself",
    (b"version https://git-lfs",): "is a git-LFS pointer; run `git lfs pull`",
}
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
        raise _too_long(label, max_bytes)
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


def _too_long(label: str, max_bytes: int) -> ImageError:
    return ImageError(f"{label} is larger than {max_bytes} bytes; save it smaller or raise max_bytes")


def _read_string(text: str, label: str, *, allow_private_urls: bool, max_bytes: int) -> bytes:
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):(//)?", text)
    kind = scheme[1].lower() if scheme else ""
    if kind in ("http", "https"):
        return _fetch(text, label, allow_private_urls=allow_private_urls, max_bytes=max_bytes)
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
    raise ImageError(f"{label} is neither an existing file nor a base64 image; check the path")


def _read_file(path: Path, label: str, max_bytes: int) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ImageError(f"{label} is {kind}; pass one image file")
        if status.st_size > max_bytes:
            raise _too_long(label, max_bytes)
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
        raise _too_long(label, max_bytes)
    return unquote_to_bytes(body)


def _decode_base64(packed: str, label: str, max_bytes: int) -> bytes:
    if len(packed) // 4 * 3 > max_bytes + 2:
        raise _too_long(label, max_bytes)
    plain = packed.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise ImageError(f"{label} is not valid base64; encode the whole file with base64.b64encode") from None


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
        raise ImageError(
            f"{label} is {width}×{height} pixels, more than {max_pixels}; scale it down or raise max_pixels"
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(f"{label} is too thin ({width}×{height} pixels, at most {MAX_ASPECT}:1); crop or pad it")


def _decode(data: bytes, label: str, max_pixels: int) -> Image.Image:
    if not data:
        raise ImageError(f"{label} is empty; save or download it again")
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageError(f"{label} has more than {max_pixels} pixels; scale it down") from None
    except Exception:  # decoders fail in any way on strange bytes
        raise ImageError(f"{label} {_what_is_wrong(data)}") from None
    with image:
        if _has_more_frames(image):
            message = f"{label} is animated or has several pages; only the first is read"
            warnings.warn(message, OneglanceWarning, stacklevel=3)
        return _normalise(image, label, max_pixels)


def _has_more_frames(image: Image.Image) -> bool:
    with contextlib.suppress(Exception):  # a damaged second frame is no reason to refuse the first
        return bool(getattr(image, "is_animated", False)) and image.format != "MPO"
    return False


def _what_is_wrong(data: bytes) -> str:
    start = data[:512].lstrip().lower()
    for opening, complaint in LOOKALIKES.items():
        if start.startswith(opening):
            return complaint
    if MAGIC.match(data):
        return "is damaged or in an unsupported variant of its format; save it again as PNG or JPEG"
    return "is not an image in a supported format; save it as PNG or JPEG"


def _normalise(image: Image.Image, label: str, max_pixels: int) -> Image.Image:
    _check_size(image.width, image.height, label, max_pixels)
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


# URLs ---------------------------------------------------------------------------------------------------------------


class _PinnedConnection(http.client.HTTPConnection):
    """A connection to addresses that were checked, so that a second DNS answer cannot lead elsewhere. Uses no proxy."""

    def __init__(self, url: SplitResult, addresses: list[str]) -> None:
        is_tls = url.scheme.lower() == "https"
        super().__init__(url.hostname or "", url.port or (443 if is_tls else 80), timeout=URL_TIMEOUT_S)
        self._addresses = addresses
        self._opened: socket.socket | None = None
        self._context = ssl.create_default_context() if is_tls else None
        self.default_port = 443 if is_tls else 80

    def connect(self) -> None:
        *others, last = self._addresses
        for address in others:
            with contextlib.suppress(OSError):  # perhaps no IPv6 here; the next address may do
                sock = socket.create_connection((address, self.port), self.timeout)
                break
        else:
            sock = socket.create_connection((last, self.port), self.timeout)
        if self._context:
            sock = self._context.wrap_socket(sock, server_hostname=self.host, do_handshake_on_connect=False)
        self.sock = self._opened = sock  # http.client lets go of its own while an answer is read
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()

    def abort(self) -> None:
        """Wake whoever waits on this connection."""
        if self._opened is not None:
            with contextlib.suppress(OSError, ValueError):  # closed already
                self._opened.shutdown(socket.SHUT_RDWR)


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return inner.is_global and not inner.is_multicast
    return ip.is_global and not ip.is_multicast


def _resolve(url: SplitResult, label: str, *, allow_private: bool) -> list[str]:
    """The addresses to connect to. Every one must be allowed, not only the first."""
    if url.scheme.lower() not in ("http", "https") or not url.hostname:
        raise ImageError(f"{label} leads to {url.geturl()[:80]!r}; only http and https URLs with a host are fetched")
    infos = socket.getaddrinfo(url.hostname, url.port or 80, type=socket.SOCK_STREAM)
    addresses = [str(info[4][0]) for info in infos]
    if not allow_private and not all(_is_public(address) for address in addresses):
        raise PrivateUrlError(
            f"{label} leads to the private address of {url.hostname!r}",
            "download it and pass the path, or in Python load_image(…, allow_private_urls=True)",
        )
    return addresses


def _fetch(text: str, label: str, *, allow_private_urls: bool, max_bytes: int) -> bytes:
    for _ in range(MAX_REDIRECTS + 1):
        try:
            url = urlsplit(text)
            addresses = _resolve(url, label, allow_private=allow_private_urls)
            data, redirect = _get(_PinnedConnection(url, addresses), url, label, max_bytes)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ImageError(f"{label} could not be fetched ({reason}); check the URL and the network") from None
        if redirect is None:
            return data
        text = urljoin(text, redirect)
    raise ImageError(f"{label} redirects more than {MAX_REDIRECTS} times; pass the final URL")


def _get(connection: _PinnedConnection, url: SplitResult, label: str, max_bytes: int) -> tuple[bytes, str | None]:
    """The body, or where a redirect leads."""
    query = f"?{quote(url.query, safe=URL_SAFE)}" if url.query else ""
    target = (quote(url.path, safe=URL_SAFE) or "/") + query
    is_late = threading.Event()

    def give_up() -> None:
        is_late.set()
        connection.abort()

    timer = threading.Timer(URL_TIMEOUT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        connection.request("GET", target, headers={"Accept": "image/*", "User-Agent": "oneglance"})
        with connection.getresponse() as response:
            if response.status in (301, 302, 303, 307, 308):
                return b"", response.getheader("Location") or ""
            if response.status != 200:
                raise ImageError(f"{label} could not be fetched (HTTP {response.status}); check the URL")
            if (response.length or 0) > max_bytes:
                raise _too_long(label, max_bytes)
            data = response.read(max_bytes + 1)
            if response.length and len(data) <= max_bytes:
                raise ConnectionError("the server closed the connection early")
    except (OSError, ValueError, http.client.HTTPException):
        if not is_late.is_set():
            raise
    finally:
        timer.cancel()
        connection.close()
    if is_late.is_set():
        raise ImageError(f"{label} took longer than {URL_TIMEOUT_S:g} s; download it and pass the path")
    return data, None
