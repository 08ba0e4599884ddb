"""Every route into ``load_image`` gives the same pixels, and every bad input gives one line that names the fix."""

import base64
import contextlib
import io
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote_from_bytes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile
from PIL import __version__ as pillow_version

from oneglance import fetch
from oneglance.core import ImageError, InputError, OneglanceWarning
from oneglance.images import image_sha256, load_image

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 10, 3), dtype=np.uint8)  # (H, W, 3), nothing symmetric


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


PNG = encoded(Image.fromarray(PIXELS))


def error_of(source: object, **options: object) -> str:
    """The message of the ``ImageError`` that a source raises; always one line."""
    with pytest.raises(ImageError) as caught:
        load_image(source, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert isinstance(caught.value, InputError)
    assert message == message.strip()
    assert len(message.splitlines()) == 1
    assert len(message) < 300
    return message


# Routes -------------------------------------------------------------------------------------------------------------

ENCODED_ROUTES: dict[str, Callable[[bytes, Path], object]] = {
    "path": lambda data, folder: write(folder / "page.png", data),
    "path as text": lambda data, folder: str(write(folder / "page.png", data)),
    "wrong extension": lambda data, folder: write(folder / "page.txt", data),
    "path that looks like base64": lambda data, folder: str(write(folder / "aGVsbG8aGVsbG8aGVsbG8", data)),
    "bytes": lambda data, folder: data,
    "bytearray": lambda data, folder: bytearray(data),
    "memoryview": lambda data, folder: memoryview(data),
    "data URI": lambda data, folder: "data:image/png;base64," + base64.b64encode(data).decode(),
    "data URI of unknown type": lambda data, folder: "data:;base64," + base64.b64encode(data).decode(),
    "data URI, percent": lambda data, folder: "data:image/png," + quote_from_bytes(data),
    "base64": lambda data, folder: base64.b64encode(data).decode(),
    "base64 in lines": lambda data, folder: base64.encodebytes(data).decode(),
    "base64, URL-safe, unpadded": lambda data, folder: base64.urlsafe_b64encode(data).decode().rstrip("="),
    "PIL": lambda data, folder: Image.open(io.BytesIO(data)),
}
ARRAY_ROUTES: dict[str, np.ndarray] = {
    "HWC": PIXELS,
    "CHW": PIXELS.transpose(2, 0, 1),
    "float": (PIXELS / 255).astype(np.float32),
    "float64 CHW": (PIXELS / 255).transpose(2, 0, 1),
    "uint16": PIXELS.astype(np.uint16) * 257,
    "RGBA": np.dstack([PIXELS, np.full((6, 10), 255, np.uint8)]),
    "not contiguous": np.repeat(PIXELS, 2, axis=1)[:, ::2],
}


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("route", ENCODED_ROUTES)
def test_encoded_routes_give_the_same_pixels(route: str, tmp_path: Path) -> None:
    image = load_image(ENCODED_ROUTES[route](PNG, tmp_path))  # type: ignore[arg-type]
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), PIXELS)


@pytest.mark.parametrize("route", ARRAY_ROUTES)
def test_array_routes_give_the_same_pixels(route: str) -> None:
    assert np.array_equal(np.asarray(load_image(ARRAY_ROUTES[route])), PIXELS)


@pytest.mark.parametrize("array", [PIXELS[:, :, 0], PIXELS[:, :, :1], PIXELS[None, :, :, 0]], ids=["HW", "HW1", "1HW"])
def test_grey_arrays(array: np.ndarray) -> None:
    assert np.array_equal(np.asarray(load_image(array)), np.repeat(PIXELS[:, :, :1], 3, axis=2))


def test_three_by_three_array_is_read_as_height_width_channels() -> None:
    assert np.array_equal(np.asarray(load_image(PIXELS[:3, :3])), PIXELS[:3, :3])


def test_bool_array_is_black_and_white() -> None:
    assert np.asarray(load_image(np.eye(2, dtype=bool)))[:, :, 0].tolist() == [[255, 0], [0, 255]]


def test_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "page.png", PNG)
    assert load_image("~/page.png").size == (10, 6)


# Stored pixels for each EXIF orientation, straight from the specification's "where is row 0, where is column 0".
STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.transpose(1, 0, 2),
    6: lambda upright: upright.transpose(1, 0, 2)[::-1],
    7: lambda upright: upright[::-1, ::-1].transpose(1, 0, 2),
    8: lambda upright: upright.transpose(1, 0, 2)[:, ::-1],
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("route", ["path", "bytes", "data URI", "base64", "PIL"])
@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(orientation: int, route: str, kind: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](PIXELS)))
    options = {"lossless": True} if kind == "WEBP" else {}
    image = load_image(ENCODED_ROUTES[route](encoded(stored, kind, exif=exif, **options), tmp_path))  # type: ignore[arg-type]
    assert np.array_equal(np.asarray(image), PIXELS)
    assert np.array_equal(np.asarray(load_image(image)), PIXELS)  # not turned a second time


def test_damaged_exif_is_ignored() -> None:
    data = encoded(Image.new("RGB", (8, 8), "red"), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12" * 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert load_image(data).size == (8, 8)


def test_source_image_is_left_alone_and_not_shared() -> None:
    source = Image.fromarray(PIXELS)
    source.info["comment"] = "mine"
    result = load_image(source)
    result.paste("black", (0, 0, 10, 6))
    assert np.array_equal(np.asarray(source), PIXELS)
    assert source.info == {"comment": "mine"}
    assert result.info == {}


def test_hash_is_of_the_normalised_pixels() -> None:
    image = load_image(PNG)
    white = Image.new("RGBA", (10, 6), (255, 255, 255, 0))
    same = [image_sha256(load_image(data)) for data in (PNG, encoded(image, "BMP"), encoded(image, "TIFF"))]
    assert len(set(same)) == 1
    assert len(same[0]) == 64
    assert image_sha256(white) == image_sha256(Image.new("RGB", (10, 6), "white"))
    assert image_sha256(Image.new("RGB", (10, 6))) != image_sha256(Image.new("RGB", (6, 10)))
    assert image_sha256(image) != image_sha256(image.transpose(Image.Transpose.ROTATE_180))


# Modes --------------------------------------------------------------------------------------------------------------


def palette(*, transparent: object = None) -> Image.Image:
    image = Image.new("P", (4, 3), 1)
    image.putpalette([0, 0, 0, 10, 200, 30])
    if transparent is not None:
        image.info["transparency"] = transparent
    return image


def deep(value: int, dtype: str) -> Image.Image:
    return Image.fromarray(np.full((3, 4), value, dtype))


def marked(image: Image.Image, transparent: object) -> Image.Image:
    image.info["transparency"] = transparent
    return image


def new(mode: str, colour: object) -> Image.Image:
    return Image.new(mode, (4, 3), colour)  # type: ignore[arg-type]


MODES: dict[str, tuple[Image.Image, tuple[int, int, int]]] = {
    "RGB": (new("RGB", (1, 2, 3)), (1, 2, 3)),
    "RGB, marked colour": (marked(new("RGB", (1, 2, 3)), (1, 2, 3)), (255, 255, 255)),
    "RGBX": (new("RGBX", (1, 2, 3, 0)), (1, 2, 3)),
    "RGBA, opaque": (new("RGBA", (1, 2, 3, 255)), (1, 2, 3)),
    "RGBA, clear": (new("RGBA", (1, 2, 3, 0)), (255, 255, 255)),
    "RGBA, half": (new("RGBA", (255, 0, 0, 128)), (255, 127, 127)),
    "RGBa": (new("RGBA", (255, 0, 0, 128)).convert("RGBa"), (255, 127, 127)),
    "L": (new("L", 77), (77, 77, 77)),
    "L, marked": (marked(new("L", 77), 77), (255, 255, 255)),
    "LA": (new("LA", (0, 128)), (127, 127, 127)),
    "La": (new("LA", (0, 128)).convert("La"), (127, 127, 127)),
    "1, white": (new("1", 1), (255, 255, 255)),
    "1, black": (new("1", 0), (0, 0, 0)),
    "P": (palette(), (10, 200, 30)),
    "P, index clear": (palette(transparent=1), (255, 255, 255)),
    "P, table of alphas": (palette(transparent=b"\xff\x00"), (255, 255, 255)),
    "P, another index clear": (palette(transparent=0), (10, 200, 30)),
    "PA": (palette().convert("PA"), (10, 200, 30)),
    "CMYK, cyan": (new("CMYK", (255, 0, 0, 0)), (0, 255, 255)),
    "CMYK, black": (new("CMYK", (0, 0, 0, 255)), (0, 0, 0)),
    "YCbCr": (new("YCbCr", (100, 128, 128)), (100, 100, 100)),
    "HSV": (new("HSV", (0, 255, 255)), (255, 0, 0)),
    "I;16": (deep(0x8080, "<u2"), (0x80, 0x80, 0x80)),
    "I;16, dark": (deep(100, "<u2"), (0, 0, 0)),
    "I;16B": (deep(0x8080, ">u2"), (0x80, 0x80, 0x80)),
    "I, 8 bit": (deep(200, "i4"), (200, 200, 200)),
    "I, 16 bit": (deep(0x8080, "i4"), (0x80, 0x80, 0x80)),
    "I, too high": (deep(100_000, "i4"), (255, 255, 255)),
    "I, negative": (deep(-5, "i4"), (0, 0, 0)),
    "F": (deep(1, "f4"), (255, 255, 255)),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb(mode: str) -> None:
    source, expected = MODES[mode]
    image = load_image(source)
    assert image.mode == "RGB"
    assert image.getcolors() == [(12, expected)]


FILES: dict[str, tuple[str, str]] = {
    f"{mode} in {kind}": (mode, kind)
    for kind, modes in {
        "PNG": ["RGBA, half", "L", "LA", "1, white", "P", "P, index clear", "P, table of alphas", "I;16"],
        "TIFF": ["RGBA, half", "L", "1, black", "P", "CMYK, cyan", "I;16", "I;16B", "I, 16 bit", "F"],
        "BMP": ["RGB", "L", "1, white", "P"],
        "GIF": ["P", "P, index clear", "L"],
        "PPM": ["RGB", "L", "1, black"],
    }.items()
    for mode in modes
}


@pytest.mark.parametrize("name", FILES)
def test_every_mode_of_file_becomes_rgb(name: str) -> None:
    mode, kind = FILES[name]
    source, expected = MODES[mode]
    assert load_image(encoded(source, kind)).getcolors() == [(12, expected)]


@pytest.mark.parametrize("compression", ["tiff_lzw", "tiff_adobe_deflate", "packbits"])
def test_ycbcr_in_a_compressed_tiff(compression: str) -> None:
    source, expected = MODES["YCbCr"]
    assert load_image(encoded(source, "TIFF", compression=compression)).getcolors() == [(12, expected)]


@pytest.mark.parametrize("after", [b"", bytes(64)])
def test_ycbcr_in_a_raw_tiff_is_never_misread(after: bytes) -> None:
    """Pillow before 13 reads beyond the pixels: an error at the end of the file, else wrong colours."""
    source, expected = MODES["YCbCr"]
    data = encoded(source, "TIFF") + after
    if int(pillow_version.partition(".")[0]) < 13:
        assert "pillow>=13" in error_of(data)
        assert "pillow>=13" in error_of(Image.open(io.BytesIO(data)))
    else:
        assert load_image(data).getcolors() == [(12, expected)]


LOSSY = [(kind, mode) for kind in ("JPEG", "WEBP", "AVIF", "JPEG2000") for mode in ("RGB", "L")]


@pytest.mark.parametrize(("kind", "mode"), [*LOSSY, ("JPEG", "CMYK"), ("JPEG2000", "CMYK")])
def test_lossy_files_are_close(kind: str, mode: str) -> None:
    source = Image.new("RGB", (16, 16), (40, 90, 160)).convert(mode)
    difference = np.asarray(load_image(encoded(source, kind)), int) - np.asarray(source.convert("RGB"), int)
    assert np.abs(difference).max() <= 6


# Animations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_first_frame_of_an_animation_with_a_warning(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    with pytest.warns(OneglanceWarning, match="only the first"):
        image = load_image(data)
    assert image.getpixel((0, 0)) == (255, 0, 0)


def test_no_warning_for_the_second_picture_of_a_camera_file() -> None:
    data = encoded(Image.new("RGB", (8, 8)), "MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))])
    assert load_image(data).size == (8, 8)


# Bad input ----------------------------------------------------------------------------------------------------------


BAD_BYTES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty; save or download it again"),
    "text": (b"Dear Sir or Madam", "save it as PNG or JPEG"),
    "zeros": (bytes(1000), "save it as PNG or JPEG"),
    "web page": (b"<!DOCTYPE html><html>", "web page"),
    "PDF": (b"%PDF-1.7\n", "render one to PNG"),
    "SVG": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "render it to PNG"),
    "git-LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "save it as PNG or JPEG"),
    "only a signature": (b"\x89PNG\r\n\x1a\n", "damaged"),
}


@pytest.mark.parametrize("name", BAD_BYTES)
def test_bytes_that_are_no_image(name: str, tmp_path: Path) -> None:
    data, message = BAD_BYTES[name]
    assert message in error_of(data)
    assert message in error_of(write(tmp_path / "page.png", data))
    assert message in error_of("data:image/png;base64," + base64.b64encode(data).decode())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "JPEG2000", "PPM"])
@pytest.mark.parametrize("share", [0.3, 0.7])
def test_truncated_files(kind: str, share: float) -> None:
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    data = encoded(noise, kind)
    message = error_of(data[: int(len(data) * share)])
    assert "damaged" in message or "supported" in message


def test_paths_that_are_no_image_file(tmp_path: Path) -> None:
    assert "does not exist; check the path" in error_of(tmp_path / "missing.png")
    assert "is a folder" in error_of(tmp_path)
    assert "is a folder" in error_of(str(tmp_path))
    assert "is not a regular file" in error_of("/dev/zero")
    (tmp_path / "dangling.png").symlink_to(tmp_path / "missing.png")
    assert "does not exist" in error_of(str(tmp_path / "dangling.png"))
    os.mkfifo(tmp_path / "pipe.png")
    assert "is not a regular file" in error_of(tmp_path / "pipe.png")
    assert "larger than 10 bytes" in error_of(write(tmp_path / "page.png", PNG), max_bytes=10)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "neither an existing file nor a base64 image"),
        ("page.png", "there is no file 'page.png'; check the path"),
        ("scans/march/receipt0001/page0001", "there is no file"),
        ("a\0b", "there is no file"),
        ("line one\nline two", "there is no file"),
        ("x" * 100_000, "neither an existing file"),
        ("/" + "x" * 5000, "neither an existing file"),
        ("ftp://example.org/page.png", "only http and https"),
        ("file:///etc/passwd", "only http and https URLs are fetched; pass a path instead"),
        ("http://", "only http and https URLs with a host"),
        ("http:page.png", "only http and https URLs with a host"),
        ("http://[::1", "could not be fetched"),
        ("http://127.0.0.1:99999/", "could not be fetched"),
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,####", "not valid base64"),
        ("data:image/png;base64,é", "not valid base64"),
        ("data:image/png;base64,A", "not valid base64"),
        ("data:image/png;base64,", "is empty"),
    ],
)
def test_strings_that_are_no_image(text: str, message: str) -> None:
    assert message in error_of(text)


@pytest.mark.parametrize("source", [None, 7, ["page.png"], object()])
def test_other_types(source: object) -> None:
    assert f"cannot read an image from {type(source).__name__}; pass a path" in error_of(source)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(5, np.uint8), "shape 5 is no image"),
        (np.zeros((1, 4, 4, 3), np.uint8), "shape 1×4×4×3 is no image"),
        (np.zeros((8, 8, 5), np.uint8), "shape 8×8×5 is no image"),
        (np.zeros((0, 4, 3), np.uint8), "at least one pixel"),
        (np.zeros((4, 4), np.int64), "int64; cast them to uint8"),
        (np.zeros((4, 4), complex), "cast them to uint8"),
        (np.full((4, 4), 2.0), "divide by 255"),
        (np.full((4, 4), -0.1), "divide by 255"),
        (np.full((4, 4), np.nan), "NaN"),
    ],
)
def test_arrays_that_are_no_image(array: np.ndarray, message: str) -> None:
    assert message in error_of(array)


def test_pil_images_that_cannot_be_used() -> None:
    assert "0×5 pixels; pass an image with at least one pixel" in error_of(Image.new("RGB", (0, 5)))
    assert "outside [0, 1]" in error_of(deep(7, "f4"))
    assert "truncated or damaged" in error_of(Image.open(io.BytesIO(PNG[:150])))


def test_thin_images() -> None:
    assert load_image(Image.new("RGB", (200, 1))).size == (200, 1)
    assert "too thin (201×1 pixels, at most 200:1); crop or pad it" in error_of(Image.new("RGB", (201, 1)))
    assert "too thin" in error_of(encoded(Image.new("RGB", (2, 402))))
    assert "too thin" in error_of(np.zeros((1, 500), np.uint8))


def test_limits() -> None:
    assert "more than 59; scale it down or raise max_pixels" in error_of(PNG, max_pixels=59)
    assert load_image(PNG, max_pixels=60).size == (10, 6)
    assert "more than 59" in error_of(PIXELS, max_pixels=59)
    assert "more than 59" in error_of(Image.fromarray(PIXELS), max_pixels=59)
    assert "larger than" in error_of(PNG, max_bytes=len(PNG) - 1)
    assert load_image(PNG, max_bytes=len(PNG)).size == (10, 6)
    for text in (
        base64.b64encode(PNG).decode(),
        "data:;base64," + base64.b64encode(PNG).decode(),
        "data:," + quote_from_bytes(PNG),
    ):
        assert "larger than" in error_of(text, max_bytes=100)
        assert load_image(text, max_bytes=len(PNG)).size == (10, 6)


# Files whose header promises far more pixels than their few bytes hold.


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png_bomb(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000)))


def gif_bomb(width: int, height: int) -> bytes:
    data = bytearray(encoded(palette(), "GIF"))
    data[6:10] = struct.pack("<HH", width, height)
    return bytes(data)


def bmp_bomb(width: int, height: int) -> bytes:
    data = bytearray(encoded(Image.new("RGB", (4, 3)), "BMP"))
    data[18:26] = struct.pack("<ii", width, height)
    return bytes(data)


def jpeg_bomb(width: int, height: int) -> bytes:
    data = bytearray(encoded(Image.new("RGB", (16, 16)), "JPEG"))
    start = data.index(b"\xff\xc0") + 5
    data[start : start + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def webp_bomb(width: int, height: int) -> bytes:
    canvas = (
        b"VP8X" + struct.pack("<IB3x", 10, 0) + struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    )
    return b"RIFF" + struct.pack("<I", 4 + len(canvas)) + b"WEBP" + canvas


BOMBS = {
    "PNG": png_bomb(60_000, 60_000),
    "PNG, near Pillow's limit": png_bomb(10_000, 9_000),
    "GIF": gif_bomb(65_000, 65_000),
    "BMP": bmp_bomb(60_000, 60_000),
    "JPEG": jpeg_bomb(60_000, 60_000),
    "JPEG, just over": jpeg_bomb(8_001, 8_000),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_decoding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("was decoded"))
    assert "scale it down" in error_of(BOMBS[name])


def test_memory_stays_flat_on_bombs(tmp_path: Path) -> None:
    bombs = {**BOMBS, "WEBP": webp_bomb(16_000, 16_000)}
    paths = [str(write(tmp_path / str(index), data)) for index, data in enumerate(bombs.values())]
    code = """if True:
        import resource, sys, warnings
        from oneglance.core import ImageError
        from oneglance.images import load_image
        warnings.simplefilter("ignore")
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        before = peak()
        for path in sys.argv[1:]:
            try: load_image(path)
            except ImageError: continue
            sys.exit("not refused: " + path)
        print(peak() - before)
    """
    result = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 30_000  # KiB; one bomb decoded would take gigabytes


@given(st.binary(max_size=200))
def test_any_bytes_give_an_image_or_an_image_error(data: bytes) -> None:
    try_to_load(data)


@given(
    kind=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP", "AVIF", "JPEG2000", "PPM"]),
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_damaged_files_give_an_image_or_an_image_error(kind: str, edits: list[tuple[float, int]]) -> None:
    data = bytearray(encoded(Image.fromarray(PIXELS), kind))
    for place, value in edits:
        data[int(place * len(data))] = value
    try_to_load(bytes(data))


def try_to_load(data: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            mode, message = load_image(data).mode, ""
        except ImageError as error:
            mode, message = "RGB", str(error)
    assert mode == "RGB"
    assert len(message.splitlines()) <= 1


# URLs ---------------------------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """Serves one behaviour a path."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path in ("/page.png", "/a%20b.png"):
            self.answer(200, PNG)
        elif path == "/redirect":
            self.answer(302, b"", Location="/page.png")
        elif path == "/elsewhere":
            self.answer(307, b"", Location=f"http://127.0.0.2:{self.server.server_address[1]}/page.png")
        elif path == "/to-file":
            self.answer(301, b"", Location="file:///etc/passwd")
        elif path == "/loop":
            self.answer(302, b"", Location="/loop")
        elif path == "/page.html":
            self.answer(200, b"<html>no image</html>")
        elif path == "/long":
            self.answer(200, PNG, Content_Length=str(10**9))
        elif path == "/endless":
            self.send_response(200)
            self.end_headers()
            for _ in range(1000):
                self.wfile.write(bytes(1000))
        elif path == "/early":
            self.answer(200, PNG[:50], Content_Length=str(len(PNG)))
        elif path == "/slow":
            self.send_response(200)
            self.end_headers()
            for byte in PNG:
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)
        elif path == "/slow-headers":
            for byte in b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n":
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)
        else:
            self.answer(404, b"nothing here")

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        headers.setdefault("Content_Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client hung up, as some tests want
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.fixture
def url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("path", ["/page.png", "/page.png?size=large image", "/a b.png", "/redirect"])
def test_url_gives_the_same_pixels(path: str, url: str) -> None:
    assert np.array_equal(np.asarray(load_image(url + path, allow_private_urls=True)), PIXELS)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/missing", "HTTP 404"),
        ("/loop", "redirects more than 5 times"),
        ("/to-file", "only http and https URLs"),
        ("/page.html", "web page"),
        ("/long", "larger than"),
        ("/early", "closed the connection early"),
    ],
)
def test_urls_that_give_no_image(path: str, message: str, url: str) -> None:
    assert message in error_of(url + path, allow_private_urls=True)


def test_endless_answer_is_cut(url: str) -> None:
    assert "larger than 5000 bytes" in error_of(url + "/endless", allow_private_urls=True, max_bytes=5000)


@pytest.mark.parametrize("path", ["/slow", "/slow-headers"])
def test_dripping_answer_is_given_up(path: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "URL_TIMEOUT_S", 0.3)
    start = time.monotonic()
    assert "took longer than 0.3 s" in error_of(url + path, allow_private_urls=True)
    assert time.monotonic() - start < 2


def test_closed_port(url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    assert "could not be fetched" in error_of(f"http://127.0.0.1:{free}/page.png", allow_private_urls=True)
    assert "could not be fetched" in error_of(url.replace("http:", "https:") + "/page.png", allow_private_urls=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "2130706433"])
def test_private_addresses_are_refused(host: str, port: int) -> None:
    message = error_of(f"http://{host}:{port}/page.png")
    assert "private address" in message or "could not be fetched" in message  # the latter where there is no IPv6


def test_redirects_are_checked_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_is_public", lambda address: address == "127.0.0.1")
    assert load_image(url + "/redirect").size == (10, 6)
    assert "private address of '127.0.0.2'" in error_of(url + "/elsewhere")


def test_the_checked_address_is_the_one_connected_to(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that answers with a public address first and a private one later leads nowhere."""
    look_up, answers = socket.getaddrinfo, iter(["127.0.0.1"])

    def getaddrinfo(host: str, *args: object, **options: object) -> object:
        return look_up(next(answers) if host == "pictures.test" else host, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(fetch, "_is_public", lambda address: True)
    assert load_image(f"http://pictures.test:{port}/page.png").size == (10, 6)


def test_the_next_address_is_tried(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_resolve", lambda url, label, allow_private: ["::1", "127.0.0.1"])  # IPv4 only
    assert load_image(f"http://pictures.test:{port}/page.png").size == (10, 6)


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("::ffff:93.184.216.34", True),
        ("10.0.0.1", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
    ],
)
def test_which_addresses_are_public(address: str, is_public: bool) -> None:
    assert fetch._is_public(address) is is_public
