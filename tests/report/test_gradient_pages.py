"""The pages of losses show the numbers they are given."""

import pytest
import torch

from pages import Page
from temperance.diagnose.gradient import Sweep, against_probability, smoothed_distribution, sweep
from temperance.errors import InputError
from temperance.losses import ACLS, AURC, Focal, InverseFocal, LabelSmoothing
from temperance.report.pages.gradients import distribution_page, limits, smoothing_chart, smoothing_page, weights_page

ABOUT = [("acls", "what `it` is < that")]


@pytest.fixture(scope="module")
def sweeps() -> dict[str, tuple[Sweep, Sweep]]:
    losses = {"acls": ACLS(margin=6.0), "ls": LabelSmoothing()}
    return {name: (sweep(loss, "top"), sweep(loss, "other")) for name, loss in losses.items()}


def points_of(path: str | None) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (point.split(",") for point in (path or "")[1:].split("L"))]


def linear(places: torch.Tensor, values: torch.Tensor) -> bool:
    """Do places in a picture, to a tenth of a unit, lie on a straight scale of the values?"""
    first, last = int(values.argmin()), int(values.argmax())
    share = (values - values[first]) / (values[last] - values[first])
    expected = places[first] + share * (places[last] - places[first])
    return bool(((places - expected).abs() < 0.15).all())


def test_smoothing_shows_f_where_c_holds(sweeps: dict[str, tuple[Sweep, Sweep]]) -> None:
    found = sweeps["acls"][0]
    page = Page(smoothing_chart({"acls": found}, "logit", "top", "logit"))
    (path,) = (a for a in page.drawn("path", "line") if "faint" not in (a["class"] or ""))
    drawn = points_of(path["d"])
    held = found.C.nonzero().flatten()
    assert len(drawn) == len(held)
    for column, values in ((0, found.logit[held]), (1, found.f[held])):
        assert linear(torch.tensor([point[column] for point in drawn], dtype=torch.float64), values)


def test_the_bars_show_where_the_condition_holds(sweeps: dict[str, tuple[Sweep, Sweep]]) -> None:
    found = {name: pair[0] for name, pair in sweeps.items()}
    page = Page(smoothing_chart(found, "logit", "top", "logit"))
    bars = [(float(a["x"] or 0), float(a["width"] or 0)) for a, _ in page.all("rect", "point")]
    assert len(bars) == 2  # one stretch each
    (acls, width), (start, whole) = bars
    share = float(found["acls"].C.double().mean())
    assert width / whole == pytest.approx(share, abs=0.01) and acls > start


def test_over_probabilities(sweeps: dict[str, tuple[Sweep, Sweep]]) -> None:
    assert "probability of the class" in smoothing_page(sweeps, ABOUT, against="probability")
    assert "its logit, all others 0" in smoothing_page(sweeps, ABOUT)
    with pytest.raises(InputError, match="against must be one of"):
        smoothing_page(sweeps, ABOUT, against="margin")


def test_a_strong_loss_leaves_room_for_the_others(sweeps: dict[str, tuple[Sweep, Sweep]]) -> None:
    low, high = limits([pair[0].f[pair[0].C] for pair in sweeps.values()])
    assert low < 0 < high < 0.2  # ACLS reaches 1.8, label smoothing 0.045
    assert limits([]) == limits([torch.empty(0)]) == pytest.approx((-0.06, 1.06))


def test_weights_are_drawn_and_positive_slopes_are_mentioned() -> None:
    calm = Page(weights_page({"focal": against_probability(Focal()), "aurc": against_probability(AURC())}, ABOUT))
    assert len([a for a, _ in calm.all("svg") if a.get("role") == "img"]) == 3 and len(calm.drawn("path", "line")) == 6
    assert "of that loss in the probability" in calm.text
    curve = against_probability(InverseFocal(gamma=5.0, allow_reversal=True))
    page = Page(weights_page({"inverse": curve}, ABOUT))
    assert "inverse pushes the label's probability down above 0" in page.text
    place = torch.tensor([y for _, y in points_of(page.drawn("path", "line")[0]["d"])], dtype=torch.float64)
    assert linear(place, curve.weight)


def test_distribution_shows_every_bandwidth() -> None:
    page = Page(distribution_page(smoothed_distribution((0.01, 0.2)), ABOUT))
    assert [text for _, text in page.all("li")] == ["exact", "bandwidth 0.01", "bandwidth 0.2"]
    assert len(page.drawn("path", "line")) == 3


def test_text_of_users_is_escaped_and_nothing_is_loaded(sweeps: dict[str, tuple[Sweep, Sweep]]) -> None:
    renamed = {f"<i>{name}</i>": pair for name, pair in sweeps.items()}
    text = smoothing_page(renamed, ABOUT)
    page = Page(text)
    assert not any(text == "acls" for _, text in page.all("i")) and "<i>acls</i>" in page.text
    assert ({}, "it") in page.all("code") and "http:" not in text and "https:" not in text
    assert text == smoothing_page(renamed, ABOUT)
