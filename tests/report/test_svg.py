"""The pictures of analyses and of several lines show the numbers they are given."""

import base64
import math
import zlib

import pytest
import torch

from conftest import random_predictions
from pages import Page
from temperance.diagnose.analysis import angles_between, simplex_angle
from temperance.diagnose.traces import Trace, posthoc_trace
from temperance.report.pages.analysis import hue
from temperance.report.pages.traces import OTHERS, class_losses, scatter, toy_section
from temperance.report.svg.angles import angle_histogram, angle_matrix, between_classes, closest_pairs, png
from temperance.report.svg.lines import COLOURS, DASHES, MOST_POINTS, Line, line_chart, series


def pixels_of(data: bytes) -> list[bytes]:
    """The rows of a PNG file, without the numbers of their filters."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    start = data.index(b"IDAT") + 4
    size = int.from_bytes(data[start - 8 : start - 4], "big")
    raw = zlib.decompress(data[start : start + size])
    height = int.from_bytes(data[20:24], "big")
    step = len(raw) // height
    assert all(raw[i * step] == 0 for i in range(height))
    return [raw[i * step + 1 : (i + 1) * step] for i in range(height)]


def test_a_png_holds_its_pixels() -> None:
    pixels = torch.arange(2 * 3 * 4, dtype=torch.uint8).reshape(2, 3, 4)
    assert pixels_of(png(pixels)) == [bytes(pixels[i].flatten().tolist()) for i in range(2)]


def test_colours_of_classes_differ() -> None:
    assert len({hue(j, 100) for j in range(100)}) == 100


def test_losses_that_are_all_zero_have_no_share() -> None:
    labels = torch.arange(20) % 4
    toy = posthoc_trace(1000.0 * torch.eye(4)[labels], labels, layer="vector", worst_classes=2, steps=2)
    page = Page(toy_section(toy, "abcd"))
    assert "–" in page.text and "nan" not in page.text


def test_many_lines_can_be_told_apart() -> None:
    assert len({series(i) for i in range(COLOURS * DASHES)}) == COLOURS * DASHES


# -------------------------------------------------------------------------------------------------------------- angles


def prototypes(k: int) -> torch.Tensor:
    return torch.randn(k, 6, generator=torch.Generator().manual_seed(k), dtype=torch.float64)


def cells_of(page: Page) -> list[bytes]:
    (image,) = (a for a, _ in page.all("image", "cells"))
    return pixels_of(base64.b64decode((image["href"] or "").split(",")[1]))


def test_the_matrix_has_names_and_a_scale() -> None:
    angles = angles_between(prototypes(4))
    names = ["cat", "dog", "a name that is long", "<b>"]
    page = Page(angle_matrix(angles, names))
    texts = [text for _, text in page.all("text")]
    for name in ("cat", "dog", "a name th…", "<b>"):
        assert texts.count(name) == 2
    pairs = between_classes(angles)
    low, high = min(float(pairs.min()), simplex_angle(4) - 0.5), max(float(pairs.max()), simplex_angle(4) + 0.5)
    assert f"{low:.0f}°" in texts and f"{high:.0f}°" in texts


def test_colours_of_the_matrix_are_the_angles() -> None:
    angles = angles_between(prototypes(5))
    off = angles - simplex_angle(5)
    reach = float(between_classes(off).abs().max())
    rows = cells_of(Page(angle_matrix(angles, list("abcde"))))
    for i, row in enumerate(rows):
        for j in range(5):
            red, _, blue, opacity = row[4 * j : 4 * j + 4]
            expected = 0.0 if i == j else abs(float(off[i, j])) / reach
            assert opacity == pytest.approx(255 * expected, abs=0.51)
            if i != j:
                assert (red > blue) == (float(off[i, j]) < 0)  # red is closer


@pytest.mark.parametrize("k", [20, 21, 250, 700])
def test_many_classes_share_cells(k: int) -> None:
    drawn = str(angle_matrix(angles_between(prototypes(k)), [str(j) for j in range(k)]))
    assert len(cells_of(Page(drawn))) <= 250 and len(drawn) < 400_000
    assert len(Page(drawn).all("text")) < 50


def test_the_closest_pairs_come_first() -> None:
    angles = angles_between(prototypes(6))
    found = closest_pairs(angles, 4)
    assert [angle for *_, angle in found] == sorted(between_classes(angles).tolist())[:4]
    assert all(float(angles[i, j]) == angle for i, j, angle in found)


def test_two_classes_and_equal_angles_are_pictures() -> None:
    for rows in (torch.eye(2), torch.eye(5)):
        angles = angles_between(rows)
        for drawn in (angle_matrix(angles, [str(j) for j in range(len(rows))]), angle_histogram(angles)):
            assert "nan" not in drawn and "inf" not in drawn


# --------------------------------------------------------------------------------------------------------------- lines


def test_lines_are_clipped_at_the_limits() -> None:
    line = Line("steep", [(0.0, 0.0), (1.0, 100.0)])
    page = Page(line_chart([line], y_title="y", x_title="x", limits=(0.0, 1.0)))
    ((frame, _),) = page.all("svg", "frame")
    assert (frame["x"], frame["y"]) == ("46", "8") and len(page.drawn("path", "line")) == 1


def test_a_long_line_is_thinned_and_keeps_its_ends() -> None:
    points = [(float(i), math.sin(i / 500)) for i in range(10_001)]
    (path,) = Page(line_chart([Line("a", points)], y_title="y", x_title="x")).drawn("path", "line")
    drawn = (path["d"] or "")[1:].split("L")
    assert len(drawn) == MOST_POINTS
    whole = Page(line_chart([Line("a", [points[0], points[-1]])], y_title="y", x_title="x", limits=(-1.1, 1.1)))
    ends = (whole.drawn("path", "line")[0]["d"] or "")[1:].split("L")
    assert [drawn[0].split(",")[0], drawn[-1].split(",")[0]] == [end.split(",")[0] for end in ends]


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    data = random_predictions(400, 60, sharpness=4.0)
    return [posthoc_trace(*data, objective=name, steps=4, worst_classes=3) for name in ("nll", "focal")]


def test_a_scatter_has_a_point_for_every_step(traces: list[Trace]) -> None:
    assert len(Page(scatter(traces, "total")).all("circle")) == sum(map(len, traces))


def test_of_many_classes_some_are_drawn_and_all_that_were_trained_on(traces: list[Trace]) -> None:
    names = [f"class {j}" for j in range(60)]
    page = Page(class_losses(traces[0], names, []))
    titles = [text for _, text in page.all("title")]
    assert {names[j] for j in traces[0].trained} <= set(titles)
    assert 3 < len(titles) <= 3 + OTHERS
