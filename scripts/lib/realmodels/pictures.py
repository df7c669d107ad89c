"""Text rendered to pictures, prepared as rapidocr-onnxruntime prepares them: scaled to -1 ... 1, channels first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

LINES = (
    "Collage places kernels",
    "2026-11-22  14:05",
    "Total: 1,234.50 EUR",
    "the quick brown fox jumps",
    "https://example.org/?q=1",
)

_WORDS = (
    "invoice number customer address total amount street delivery order payment Monday water school morning letter "
    "market green station winter machine paper window garden simple record quiet number yellow kitchen answer travel"
).split()

Floats = npt.NDArray[np.float32]


def page(height: int, width: int, seed: int) -> Floats:
    """Lines of several sizes and greys on a page, (1, 3, height, width)."""
    rng = np.random.default_rng(seed)
    picture = Image.new("RGB", (width, height), tuple(int(v) for v in rng.integers(200, 256, 3)))
    draw = ImageDraw.Draw(picture)
    y = 8
    while y < height - 12:
        size = int(rng.integers(12, 34))
        ink = tuple(int(v) for v in rng.integers(0, 110, 3))
        text = LINES[int(rng.integers(len(LINES)))]
        draw.text((int(rng.integers(4, 20)), y), text, ink, ImageFont.load_default(size))
        y += size + int(rng.integers(6, 24))
    return _scaled(picture)[np.newaxis]


def line(height: int, width: int, text: str, *, upside_down: bool = False) -> Floats:
    """One line of text as high as the picture, cut or filled up with zeros at its right, (3, height, width)."""
    font = ImageFont.load_default(int(height * 0.7))
    extent = int(font.getlength(text)) + height // 2
    picture = Image.new("RGB", (extent, height), "white")
    ImageDraw.Draw(picture).text((height // 4, height // 10), text, "black", font)
    if upside_down:
        picture = picture.rotate(180)
    if extent > width:
        picture = picture.resize((width, height), Image.Resampling.BILINEAR)
    found = np.zeros((3, height, width), np.float32)
    found[:, :, : picture.width] = _scaled(picture)
    return found


def sentence(rng: np.random.Generator) -> str:
    """A line of words and numbers that fits in a picture of 320 x 48."""
    found = [str(rng.choice(_WORDS)) for _ in range(int(rng.integers(1, 3)))]
    if rng.random() < 0.5:
        found.append(str(rng.choice([f"{rng.integers(10**5)}", f"{rng.uniform(1, 999):.2f}", "No. 7", "A-12"])))
    return " ".join(found).capitalize() if rng.random() < 0.5 else " ".join(found)


def _scaled(picture: Image.Image) -> Floats:
    array = np.asarray(picture, np.float32).transpose(2, 0, 1)
    return np.ascontiguousarray((array / 255 - 0.5) / 0.5)
