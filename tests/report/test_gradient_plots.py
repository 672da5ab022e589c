"""Figures of losses: they show the numbers they are given, in every format, and the same ones twice alike."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from temperance.errors import InputError
from temperance.losses import ACLS, AURC, Focal, InverseFocal, LabelSmoothing
from temperance.losses.gradients import against_probability, smoothed_distribution, sweep
from temperance.report.figures.gradients import draw_distribution, draw_smoothing, draw_weights, write_figure


def smoothing(**options: Any) -> Any:
    losses = {"acls": ACLS(margin=6.0, detach=True), "ls": LabelSmoothing()}
    return draw_smoothing(
        {name: (sweep(loss, "top"), sweep(loss, "other")) for name, loss in losses.items()}, **options
    )


def test_smoothing_shows_f_where_c_holds() -> None:
    figure = smoothing()
    top, other = figure.axes[0], figure.axes[1]
    found = sweep(ACLS(margin=6.0, detach=True), "top")
    acls = {line.get_label(): line for line in top.get_lines()}["acls"]
    drawn = torch.tensor(acls.get_ydata())
    assert torch.equal(torch.isnan(drawn), ~found.C)
    assert torch.allclose(drawn[found.C], found.f[found.C])
    assert torch.allclose(torch.tensor(acls.get_xdata()), found.logit)
    assert "predicted class" in top.get_title(loc="left") and "another class" in other.get_title(loc="left")
    by_probability = smoothing(against="probability").axes[0].get_lines()[0]
    assert torch.allclose(torch.tensor(by_probability.get_xdata()), found.prob)
    with pytest.raises(InputError, match="against must be one of"):
        smoothing(against="margin")


def test_a_strong_loss_leaves_room_for_the_others() -> None:
    low, high = smoothing().axes[0].get_ylim()
    assert low < 0 < high < 0.2  # ACLS reaches 1.8, label smoothing 0.045


def test_weights_show_three_panels_and_warn_of_positive_slopes() -> None:
    calm = draw_weights({"focal": against_probability(Focal()), "aurc": against_probability(AURC())})
    assert len(calm.axes) == 3 and not calm.axes[2].texts
    curve = against_probability(InverseFocal(gamma=5.0, allow_reversal=True))
    reversed_ = draw_weights({"inverse": curve})
    assert "pushes the label down" in reversed_.axes[2].texts[0].get_text()
    assert torch.allclose(torch.tensor(reversed_.axes[0].get_lines()[0].get_ydata()), curve.weight)


def test_distribution_shows_every_bandwidth() -> None:
    labels = [line.get_label() for line in draw_distribution(smoothed_distribution((0.01, 0.2))).axes[0].get_lines()]
    assert labels == ["exact", "bandwidth 0.01", "bandwidth 0.2"]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".html"])
def test_files(tmp_path: Path, suffix: str) -> None:
    for name in ("one", "two"):
        write_figure(smoothing(), tmp_path / f"{name}{suffix}", title="A < B", about=[("acls", "what `it` is")])
    one, two = ((tmp_path / f"{name}{suffix}").read_bytes() for name in ("one", "two"))
    assert one == two
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".html": b"<!doctype html>"}[suffix]
    assert one.startswith(start)
    if suffix == ".html":
        text = one.decode()
        assert "A &lt; B" in text and "<code>it</code>" in text
        assert not re.search(r'(src|href)="(?!data:)', text)


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"written as \.png, \.svg, \.html; got 'x\.pdf'"):
        write_figure(smoothing(), tmp_path / "x.pdf", title="")
    assert not list(tmp_path.iterdir())
