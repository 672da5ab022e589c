"""Pictures of the angles between class prototypes: a matrix of all pairs, and a histogram."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from unicodedata import east_asian_width

import torch
from torch import Tensor

from temperance.diagnose.analysis import simplex_angle
from temperance.markup import Markup, join, tag
from temperance.report.svg.drawing import (
    INNER,
    LEFT,
    RIGHT,
    Plot,
    Scale,
    label,
    number_text,
    picture,
    roomy,
    round_ticks,
    ticks_between,
)

CLOSE, FAR = (200, 69, 47), (42, 111, 187)  # colours of classes nearer and further than the best angle
NAMED = 20  # classes that have room for their names
LONGEST = 10  # characters of a name
CHARACTER, WIDE_CHARACTER = 8.3, 14.0  # width of a character in a wide font, and of an East Asian one
MOST_CELLS = 250  # along a side; with more classes, neighbours share a cell
SCALE_HEIGHT = 46.0  # of the scale of colours above the matrix


def between_classes(angles: Tensor) -> Tensor:
    """The angle of every pair of classes, once each."""
    first, second = torch.triu_indices(len(angles), len(angles), 1)
    return angles[first, second]


def summary(angles: Tensor) -> str:
    """The mean and the range of the angles, in words."""
    found = between_classes(angles)
    return f"mean {float(found.mean()):.1f}°, from {float(found.min()):.1f}° to {float(found.max()):.1f}°"


def closest_pairs(angles: Tensor, most: int) -> list[tuple[int, int, float]]:
    """The pairs of classes with the smallest angles, the smallest first."""
    pairs = torch.triu_indices(len(angles), len(angles), 1).T
    chosen = pairs[between_classes(angles).argsort(stable=True)[:most]].tolist()
    return [(i, j, float(angles[i, j])) for i, j in chosen]


def angle_matrix(angles: Tensor, names: Sequence[str]) -> Markup:
    """A cell for every pair of classes, coloured by how far its angle is from the best one, with a scale of colours."""
    k, best = len(angles), simplex_angle(len(angles))
    reach = float((between_classes(angles) - best).abs().max()) or 1.0
    side = math.ceil(k / math.ceil(k / MOST_CELLS))
    named = k <= NAMED
    short = [_short(name) for name in names] if named else []
    # Names need room to the left of the matrix, and below it where they stand upright.
    longest = max(map(_width, short), default=0.0)
    left = max(LEFT, longest + 10)
    size, top = RIGHT - left, SCALE_HEIGHT
    plot = Plot(Scale(0, k, left, RIGHT), Scale(0, k, top, top + size))
    ticks = range(k) if named else [int(tick) for tick in ticks_between(0, k - 1, 5) if tick == round(tick)]
    texts = short if named else [f"{tick:,}" for tick in ticks]
    down = [label(left - 6, plot.y(i + 0.5) + 4, text, anchor="end") for i, text in zip(ticks, texts, strict=True)]
    upright = longest > size / k
    across = []
    for i, text in zip(ticks, texts, strict=True):
        x, y = plot.x(i + 0.5), top + size
        turned = f"translate({x + 4:.1f},{y + 8:.1f}) rotate(-90)"
        written = tag("text", text, transform=turned, text_anchor="end")
        across.append(written if upright else label(x, y + 16, text, anchor="middle"))
    below = longest + 14 if upright else 42
    if not upright:
        across.append(label(left + size / 2, top + size + 34, "class", anchor="middle"))
    cells = _png(_coloured(_pooled(angles - best, side), reach))
    return picture(
        top + size + below,
        f"Angles between {k:,} class prototypes: {summary(angles)}.",
        _colour_scale(angles, best, reach, left),
        tag("image", href=cells, x=left, y=top, width=size, height=size, class_="cells"),
        tag("rect", x=left, y=top, width=size, height=size, class_="outline"),
        *down,
        *across,
    )


def _pooled(off: Tensor, side: int) -> Tensor:
    """A matrix with `side` cells along each side: each is the mean of the pairs that it stands for."""
    k = len(off)
    pairs = off.clone().fill_diagonal_(0.0)
    if side == k:
        return pairs
    cell = torch.arange(k) * side // k
    total = pairs.new_zeros(side, k).index_add_(0, cell, pairs)
    total = pairs.new_zeros(side, side).index_add_(1, cell, total)
    count = cell.bincount(minlength=side).double()
    return total / (count[:, None] * count[None, :])


def _coloured(off: Tensor, reach: float) -> Tensor:
    """Red if classes are closer than the best angle, blue if further apart, clear at the best angle."""
    share = (off / reach).clamp(-1, 1)[..., None]
    colour = torch.where(share < 0, torch.tensor(CLOSE), torch.tensor(FAR)).double()
    return torch.cat([colour, 255 * share.abs()], -1).round().to(torch.uint8)


def _colour_scale(angles: Tensor, best: float, reach: float, left: float) -> Markup:
    """A strip of the colours with their angles above the matrix."""
    pairs = between_classes(angles)
    low, high = min(float(pairs.min()), best - 0.5), max(float(pairs.max()), best + 0.5)
    steps = torch.linspace(low - best, high - best, 101, dtype=torch.float64)[None]
    place = Scale(low, high, left, RIGHT)
    box = {"x": left, "y": 4, "width": RIGHT - left, "height": 10}
    cells = tag("image", href=_png(_coloured(steps, reach)), preserveAspectRatio="none", **box)
    texts = [(low, "start"), (high, "end")]
    if left + 45 < place(best) < RIGHT - 45:
        texts.append((best, "middle"))
    labels = (label(place(angle), 29, f"{angle:.0f}°", anchor=anchor) for angle, anchor in texts)
    return join([cells, tag("rect", **box, class_="outline"), *labels])


def _short(name: str) -> str:
    """As much of a name as there is room for."""
    if _width(name) <= LONGEST * CHARACTER:
        return name
    end = next(i for i in range(len(name), -1, -1) if _width(name[:i]) <= (LONGEST - 1) * CHARACTER)
    return name[:end] + "…"


def _width(text: str) -> float:
    return sum(WIDE_CHARACTER if east_asian_width(character) in "WF" else CHARACTER for character in text)


def angle_histogram(angles: Tensor) -> Markup:
    """The number of pairs of classes at each angle."""
    pairs = between_classes(angles)
    n_bins = min(40, 2 * math.ceil(math.sqrt(len(pairs))))
    best = simplex_angle(len(angles))
    low, high = min(float(pairs.min()), best), max(float(pairs.max()), best)
    x = roomy(low, high, LEFT, RIGHT)
    edges = torch.linspace(x.low, x.high, n_bins + 1, dtype=torch.float64)
    count = torch.bucketize(pairs, edges[1:-1]).bincount(minlength=n_bins)
    plot = Plot(x, Scale(0, int(count.max()), SCALE_HEIGHT + INNER, SCALE_HEIGHT))
    ticks, across = round_ticks(int(count.max()), 4), ticks_between(x.low, x.high, 5)
    ticks = [tick for tick in ticks if tick == round(tick)]
    return picture(
        SCALE_HEIGHT + INNER + 42,
        f"Histogram of the angles between class prototypes: {summary(angles)}.",
        label(0, 29, "pairs of classes"),
        plot.y_axis(ticks, number_text),
        plot.bars(edges.tolist(), count.tolist()),
        plot.line([(best, 0), (best, plot.y.high)], "guide"),
        plot.x_axis(across, "angle", lambda tick: f"{number_text(tick)}°"),
    )


def _png(pixels: Tensor) -> str:
    """Colours with opacity, uint8 (height, width, 4), as a data URL of a PNG picture.

    A rectangle for each cell would make the page too large.
    """
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


def png(pixels: Tensor) -> bytes:
    """Colours with opacity, uint8 (height, width, 4), as a PNG file."""
    height, width, _ = pixels.shape
    rows = pixels.cpu().contiguous().numpy()
    # Every line begins with the number of its filter: none.
    raw = b"".join(b"\x00" + rows[i].tobytes() for i in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
