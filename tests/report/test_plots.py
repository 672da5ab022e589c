"""The figures draw the numbers of the statistic, and leave Matplotlib as they found it."""

import dataclasses
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from scipy.stats import binomtest

from conftest import random_predictions
from temperance.errors import InputError, MissingExtraError
from temperance.metrics import aurc, classwise_ece, ece, risk_coverage_curve
from temperance.metrics.bins import Bins
from temperance.metrics.selective import RiskCoverage
from temperance.metrics.tally import clopper_pearson
from temperance.report import (
    draw_classwise,
    draw_confidence_histogram,
    draw_reliability,
    draw_reliability_pair,
    draw_risk_coverage,
)
from temperance.report.numbers import bars, highest_risk, thinned, worst_classes

GAPS = ("over-confident", "under-confident", "pale: could be chance")  # the names of bars in a reliability diagram


@pytest.fixture(scope="module")
def bins() -> Bins:
    logits, labels = random_predictions(400, 5)
    return cast(Bins, ece.stats(logits, labels, from_logits=True))


@pytest.fixture(scope="module")
def class_bins() -> Bins:
    logits, labels = random_predictions(400, 30)
    return cast(Bins, classwise_ece.stats(logits, labels, from_logits=True))


def container(ax: Axes, label: str) -> list[Any]:
    """The bars that carry this label."""
    return [p for c in ax.containers if c.get_label() == label for p in cast(BarContainer, c).patches]


def drawn(figure: Any) -> None:
    """Run all of Matplotlib's drawing, so that what fails only then fails here."""
    figure.canvas.draw()


# ------------------------------------------------------------------------------------------------------------- numbers


@given(n=st.integers(1, 5000), share=st.floats(0, 1))
def test_clopper_pearson_is_scipys(n: int, share: float) -> None:
    hits = round(share * n)
    low, high = clopper_pearson(torch.tensor([hits]), torch.tensor([n]), 0.95)
    expected = binomtest(hits, n).proportion_ci(method="exact")
    assert float(low) == pytest.approx(expected.low, abs=1e-9)
    assert float(high) == pytest.approx(expected.high, abs=1e-9)
    assert float(low) <= hits / n <= float(high)


def test_bars_of_weights_have_no_interval() -> None:
    bins = ece.stats([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], weights=[0.5, 0.2, 0.1])
    found = bars(bins)  # type: ignore[arg-type]
    assert [bar.count for bar in found] == pytest.approx([0.1, 0.2, 0.5])
    assert all(math.isnan(bar.low) and not bar.chance for bar in found)
    drawn(draw_reliability(bins).figure)


def test_bars_leave_out_empty_bins_and_keep_the_order() -> None:
    bins = Bins(torch.tensor([0, 4, 0, 2]), torch.tensor([0.0, 1.6, 0.0, 1.8]).double(), torch.tensor([0, 1, 0, 2]))
    first, second = bars(bins)
    assert (first.left, first.right, first.count) == (0.25, 0.5, 4)
    assert (first.confidence, first.accuracy) == pytest.approx((0.4, 0.25))
    assert first.over and first.chance
    assert (second.left, second.right, second.accuracy) == (0.75, 1.0, 1.0)
    assert not second.over


def test_many_bins_are_merged_and_lose_nothing() -> None:
    logits, labels = random_predictions(3000, 5)
    fine, coarse = (ece.stats(logits, labels, from_logits=True, n_bins=n) for n in (1000, 50))
    for merged, bar in zip(bars(cast(Bins, fine)), bars(cast(Bins, coarse)), strict=True):
        assert dataclasses.astuple(merged) == pytest.approx(dataclasses.astuple(bar), rel=1e-12)
    uneven = bars(cast(Bins, ece.stats(logits, labels, from_logits=True, n_bins=777)))
    assert len(uneven) <= 50 and sum(bar.count for bar in uneven) == 3000 and uneven[-1].right == 1.0


def test_a_gap_is_chance_until_there_are_enough_samples() -> None:
    few, many = (
        bars(Bins(torch.tensor([m]), torch.tensor([0.8 * m]).double(), torch.tensor([m // 2])))[0] for m in (4, 400)
    )
    assert few.chance and not many.chance


def test_worst_classes_are_in_order_and_add_up(class_bins: Bins) -> None:
    found = worst_classes(class_bins)
    errors = [entry.error for entry in found]
    assert errors == sorted(errors, reverse=True)
    assert all(entry.over + entry.under == pytest.approx(entry.error) for entry in found)
    assert np.mean(errors) == pytest.approx(classwise_ece.value(class_bins))
    assert sum(entry.labels for entry in found) == 400
    assert sum(entry.predicted for entry in found) == pytest.approx(400)
    assert worst_classes(class_bins, most=7) == found[:7]


def test_names_must_fit_the_classes(class_bins: Bins) -> None:
    with pytest.raises(InputError, match="2 names for 30 classes"):
        worst_classes(class_bins, ["a", "b"])


def test_thinning_keeps_both_ends_and_the_values() -> None:
    logits, labels = random_predictions(5000, 3)
    curve = risk_coverage_curve(logits, labels, from_logits=True)
    few = thinned(curve, 100)
    assert len(few.coverage) == 100
    assert few.coverage[0] == curve.coverage[0] and few.coverage[-1] == 1
    whole = dict(zip(curve.coverage.tolist(), curve.risk.tolist(), strict=True))
    assert all(whole[c] == r for c, r in zip(few.coverage.tolist(), few.risk.tolist(), strict=True))


@pytest.mark.parametrize("n", [1, 2, 60])
def test_the_risk_axis_has_room_for_a_perfect_and_a_hopeless_model(n: int) -> None:
    ones = torch.ones(n, dtype=torch.float64)
    coverage = ones.cumsum(0) / n
    assert highest_risk(RiskCoverage(coverage, 0 * ones, ones)) > 0
    assert highest_risk(RiskCoverage(coverage, ones, ones)) > 1


# ------------------------------------------------------------------------------------------------------------- figures


def test_reliability_bars_are_the_frequencies(bins: Bins) -> None:
    ax = draw_reliability(bins)
    full = bins.count > 0
    assert [bar.get_height() for bar in container(ax, "accuracy")] == pytest.approx(bins.frequency[full].tolist())
    assert [bar.get_x() for bar in container(ax, "accuracy")] == pytest.approx(bins.edges[:-1][full].tolist())
    drawn(ax.figure)


def test_reliability_gaps_are_the_gaps(bins: Bins) -> None:
    ax = draw_reliability(bins)
    expected: dict[str, dict[float, float]] = {name: {} for name in GAPS}
    gaps = dict(zip(((bins.edges[:-1] + bins.edges[1:]) / 2).tolist(), bins.gap.tolist(), strict=True))
    for bar in bars(bins):
        name = "pale: could be chance" if bar.chance else "over-confident" if bar.over else "under-confident"
        expected[name] |= {round(at, 9): abs(gap) for at, gap in gaps.items() if bar.left < at < bar.right}
    assert sum(map(len, expected.values())) == int((bins.count > 0).sum()) and expected["pale: could be chance"]
    for name, heights in expected.items():
        found = {round(bar.get_x() + bar.get_width() / 2, 9): bar.get_height() for bar in container(ax, name)}
        assert found == pytest.approx(heights)
    legend = ax.get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} >= {name for name in GAPS if expected[name]}


def test_the_bar_of_the_accuracy_shows_behind_the_gap(bins: Bins) -> None:
    ax = draw_reliability(bins)
    heights = [bar.get_height() for bar in container(ax, "accuracy")]
    assert heights == pytest.approx([bar.accuracy for bar in bars(bins)])
    widths = {bar.get_width() for label in GAPS for bar in container(ax, label)}
    assert max(widths) < 0.6 * min(bar.get_width() for bar in container(ax, "accuracy"))


def test_reliability_counts_are_the_counts(bins: Bins) -> None:
    (strip,) = draw_reliability(bins).child_axes
    heights = [bar.get_height() for bar in cast(BarContainer, strip.containers[0]).patches]
    assert heights == bins.count[bins.count > 0].tolist()


def test_reliability_is_named_with_its_ece(bins: Bins) -> None:
    assert f"ECE {100 * ece.value(bins):.2f} %" in draw_reliability(bins).get_title(loc="left")


def test_a_pair_shares_a_figure(bins: Bins) -> None:
    before, after = draw_reliability_pair(bins, bins)
    assert before.figure is after.figure
    assert before.get_title(loc="left").startswith("before") and after.get_title(loc="left").startswith("after")
    drawn(before.figure)


def test_histogram_bars_are_shares_with_both_means_marked(bins: Bins) -> None:
    ax = draw_confidence_histogram(bins)
    heights = [bar.get_height() for bar in cast(BarContainer, ax.containers[0]).patches]
    assert heights == pytest.approx(bins.weight[bins.count > 0].tolist())
    confidence, accuracy = (line.get_xdata()[0] for line in ax.lines)  # type: ignore[index]
    assert ax.get_yscale() == "function" and "square-root" in ax.get_ylabel()
    assert confidence == pytest.approx(float(bins.confidence.sum() / bins.n))
    assert accuracy == pytest.approx(float(bins.hits.sum() / bins.n))
    drawn(ax.figure)


def test_classwise_shows_the_worst_first_in_two_parts(class_bins: Bins) -> None:
    names = [f"class ${j}$" for j in range(30)]
    ax = draw_classwise(class_bins, names=names, most=4)
    worst = worst_classes(class_bins, names)[:4]
    assert [bar.get_width() for bar in container(ax, "over-confident")] == pytest.approx([100 * c.over for c in worst])
    assert [bar.get_width() for bar in container(ax, "under-confident")] == pytest.approx(
        [100 * c.under for c in worst]
    )
    assert [text.get_text().replace("\\$", "$") for text in ax.get_yticklabels()] == [c.name for c in worst]
    top, bottom = ax.get_ylim()[1], ax.get_ylim()[0]
    assert top < bottom  # the worst is on top
    drawn(ax.figure)


def test_risk_coverage_draws_the_curve() -> None:
    logits, labels = random_predictions(50, 4)
    curve = risk_coverage_curve(logits, labels, from_logits=True)
    ax = draw_risk_coverage(curve)
    line = ax.lines[-1]
    assert np.array_equal(line.get_xdata(), curve.coverage.numpy())
    assert np.array_equal(line.get_ydata(), curve.risk.numpy())
    drawn(ax.figure)


@pytest.mark.parametrize("n_bins", [1, 15, 200])
@pytest.mark.parametrize("n", [1, 3])
def test_few_samples_and_any_number_of_bins(n: int, n_bins: int) -> None:
    logits, labels = random_predictions(n, 3)
    bins = ece.stats(logits, labels, from_logits=True, n_bins=n_bins)
    drawn(draw_reliability(bins).figure)
    drawn(draw_confidence_histogram(bins).figure)
    drawn(draw_classwise(classwise_ece.stats(logits, labels, from_logits=True, n_bins=n_bins)).figure)
    drawn(draw_risk_coverage(risk_coverage_curve(logits, labels, from_logits=True)).figure)


def test_given_axes_are_drawn_on(bins: Bins) -> None:
    ax = Figure().add_subplot()
    assert draw_reliability(bins, ax) is ax
    assert draw_confidence_histogram(bins, ax) is ax


def test_settings_are_left_alone(bins: Bins) -> None:
    before = dict(matplotlib.rcParams)
    drawn(draw_reliability(bins).figure)
    assert dict(matplotlib.rcParams) == before


# -------------------------------------------------------------------------------------------------------------- refusal


def test_each_function_names_the_statistic_it_wants(bins: Bins, class_bins: Bins) -> None:
    with pytest.raises(InputError, match=r"ece\.stats.*shape \(30, 15\)"):
        draw_reliability(class_bins)
    with pytest.raises(InputError, match=r"classwise_ece\.stats.*shape \(15,\)"):
        draw_classwise(bins)
    with pytest.raises(InputError, match=r"ece\.stats.*got Ranked"):
        draw_confidence_histogram(aurc.stats([[0.9, 0.1]], [0]))
    with pytest.raises(InputError, match=r"risk_coverage_curve.*got Bins"):
        draw_risk_coverage(cast(RiskCoverage, bins))
    with pytest.raises(InputError, match="most must be"):
        draw_classwise(class_bins, most=0)


def run_python(program: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_matplotlib_is_imported_only_to_draw_and_never_opens_windows(tmp_path: Path) -> None:
    program = """
import sys
from temperance.metrics import ece
from temperance.report import draw_reliability, write_report
print("matplotlib" in sys.modules)
draw_reliability(ece.stats([[0.9, 0.1]], [0])).figure.savefig("found.png")
print("matplotlib.pyplot" in sys.modules)
"""
    assert run_python(program, tmp_path).split() == ["False", "False"]
    assert (tmp_path / "found.png").stat().st_size > 1000


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"^drawing needs matplotlib: pip install 'temperance\[report\]'$"):
        draw_reliability(ece.stats([[0.9, 0.1]], [0]))
