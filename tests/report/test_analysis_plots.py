"""Figures of trainings and analyses: they show the numbers they are given."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import random_predictions
from temperance.diagnose.analysis import Embedding, angles_between
from temperance.diagnose.shift import Shift
from temperance.diagnose.traces import Trace, posthoc_trace
from temperance.errors import InputError
from temperance.heads.masked import MaskedInference
from temperance.jobs.ood import compare_ood
from temperance.jobs.results import Provenance, Row
from temperance.metrics import ece
from temperance.predictions import Predictions
from temperance.report import (
    draw_angles,
    draw_class_losses,
    draw_confidence_histograms,
    draw_correlation,
    draw_keep_rate,
    draw_map,
    draw_masked_inference,
    draw_scores,
    draw_shift,
    draw_traces,
    draw_training,
    write_report,
)


def drawn(ax: Any) -> dict[str, list[float]]:
    """The heights of the lines, by their names."""
    return {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    data = random_predictions(200, 3, sharpness=4.0)
    return [posthoc_trace(*data, objective=name, steps=6) for name in ("nll", "focal")]


def test_a_training() -> None:
    rows = [
        {"epoch": e, "lr": 0.1, "loss": 1 / e, "accuracy": None, "val_accuracy": 0.5, "val_ece": 0.1} for e in (1, 2, 3)
    ]
    loss, accuracy, error, rate = draw_training(rows).axes
    assert drawn(loss)["training"] == [1, 1 / 2, 1 / 3]
    assert drawn(accuracy) == {"held out": [50.0] * 3} and drawn(error)["held out"] == [10.0] * 3
    assert next(iter(drawn(rate).values())) == [0.1] * 3
    with pytest.raises(InputError, match="no epochs"):
        draw_training([])


def test_keep_rates() -> None:
    rows = [{"epoch": e, "keep_rate": 0.5 - 0.1 * e} for e in (1, 2, 3)]
    assert drawn(draw_keep_rate({"a": rows, "b": rows}))["a"] == [row["keep_rate"] for row in rows]
    assert len(draw_keep_rate(rows).get_lines()) == 1
    with pytest.raises(InputError, match="only a masked head"):
        draw_keep_rate([{"epoch": 1, "loss": 1.0}])


def test_masked_inference() -> None:
    found = [MaskedInference(0.0, 0.9, 0.95, (1,)), MaskedInference(0.5, 0.8, 0.6, (1,))]
    lines = drawn(draw_masked_inference(found))
    assert lines == {"accuracy": [0.9, 0.8], "mean confidence": [0.95, 0.6]}


def test_shift() -> None:
    errors = {"": 0.05, "fog:1": 0.1, "snow:1": 0.3, "mean:1": 0.2}
    rows = tuple(
        Row("", "", group, "uncalibrated", {}, "ece", value, math.nan, math.nan, 1, 0.0)
        for group, value in errors.items()
    )
    found = Shift(rows, Provenance.of({}, {}, 0), ("fog", "snow"), (1,), ("uncalibrated",), {})
    ax: Any = draw_shift(found)
    assert drawn(ax)["uncalibrated"] == [5.0, 20.0]
    (band,) = ax.collections
    assert band.get_paths()[0].vertices[:, 1].max() == pytest.approx(30) and list(ax.get_xticks()) == [0, 1]
    with pytest.raises(InputError, match="metric must be one of ece, accuracy, nll"):
        draw_shift(found, "brier")


def test_traces(traces: list[Trace]) -> None:
    total, spread, error = draw_traces(traces).axes
    assert drawn(total)["focal"] == traces[1].total.tolist() and drawn(spread)["nll"] == traces[0].spread.tolist()
    assert drawn(error)["nll"] == pytest.approx((100 * traces[0].ece).tolist())
    ax: Any = draw_correlation(traces, "total")
    points = ax.collections[0].get_offsets()
    np.testing.assert_allclose(points, torch.stack([traces[0].total, 100 * traces[0].ece], 1).numpy())
    assert len(draw_class_losses(traces[0]).get_lines()) == 3
    with pytest.raises(InputError, match="column must be one of total, spread"):
        draw_correlation(traces, "loss")


def test_angles() -> None:
    angles = angles_between(torch.eye(4))
    axes: list[Any] = draw_angles(angles, ["a", "b", "c", "d"]).axes
    matrix, histogram, *_ = axes
    assert [text.get_text() for text in matrix.get_xticklabels()] == ["a", "b", "c", "d"]
    assert sum(patch.get_height() for patch in histogram.patches) == 6
    with pytest.raises(InputError, match=r"angles must be \(k, k\)"):
        draw_angles(torch.zeros(3, 2))


def test_a_map() -> None:
    found = Embedding(
        torch.rand(5, 2), torch.tensor([0, 1, 1, 0, 1]), torch.tensor([0.0, 0.2, 1.0, 0.1, 0.5]), torch.arange(5)
    )
    ax: Any = draw_map(found, ["$a", "b"])
    opacity = ax.collections[0].get_facecolors()[:, 3]
    assert list(opacity) == sorted(opacity) and opacity[-1] == 1.0
    ax.figure.canvas.draw()


def test_histograms() -> None:
    logits, labels = random_predictions(100, 3)
    sets = {name: ece.stats(scale * logits, labels, from_logits=True) for name, scale in (("one", 1.0), ("two", 3.0))}
    first, second = draw_confidence_histograms(sets).axes
    assert first.get_ylim() == second.get_ylim() and first.get_title(loc="left") == "one"
    with pytest.raises(InputError, match="at least one set"):
        draw_confidence_histograms({})


def test_scores() -> None:
    sides = [Predictions.of(*random_predictions(80, 3, seed), from_logits=True) for seed in (0, 1)]
    found = compare_ood(sides[0], sides[1], bootstrap=5)
    figure = draw_scores(found)
    assert len(figure.axes) == 4
    assert all(
        histogram.score in ax.get_title(loc="left") for ax, histogram in zip(figure.axes, found.histograms, strict=True)
    )
    figure.canvas.draw()


def test_what_needs_training_is_imported_when_it_is_asked_for() -> None:
    code = (
        "import sys, temperance.report as r; assert 'temperance.training' not in sys.modules; r.draw_shift; "
        "assert 'temperance.training' in sys.modules; [getattr(r, name) for name in r.__all__]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_what_is_known_has_a_page(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no page for a dict; known: Evaluation, Comparison"):
        write_report({}, tmp_path / "page.html")  # type: ignore[arg-type]
