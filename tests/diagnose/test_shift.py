"""A network on corrupted images: the numbers are those of the metrics, and nothing depends on chance but the seed."""

import csv
import io
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from commands import refused
from pages import Page
from temperance.calibrators import make_calibrator
from temperance.cli import main
from temperance.data import Images
from temperance.data.corruptions import CORRUPTIONS, corrupt
from temperance.diagnose.shift import Corrupted, Shift, some_of, under_shift, usual_corruptions
from temperance.errors import InputError, MissingExtraError
from temperance.jobs.results import Provenance, Row
from temperance.metrics import accuracy, ece, nll
from temperance.metrics.significance import Difference
from temperance.report import write_report
from temperance.report.pages.shift import shift_page
from temperance.training.prediction import predict

MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


class Colours(nn.Module):
    """Sees which colour prevails; sure of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4.0))

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * images.mean((2, 3))


def images(n: int = 90, channels: int = 3) -> Images:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(3, (n,), generator=generator)
    pixels = torch.randint(0, 150, (n, 12, 12, channels), generator=generator, dtype=torch.uint8)
    if channels == 3:
        pixels[torch.arange(n), :, :, labels] += torch.randint(0, 40, (n, 1, 1), generator=generator, dtype=torch.uint8)
    return Images(pixels, labels)


@pytest.fixture(scope="module")
def part() -> Images:
    return images()


@pytest.fixture(scope="module")
def found(part: Images) -> Shift:
    network = Colours()
    fitted = make_calibrator("temperature").fit(predict(network, part, mean=MEAN, std=STD).double(), part.labels)
    names = ["gaussian-noise", "fog", "brightness"]
    return under_shift(network, part, mean=MEAN, std=STD, corruptions=names, severities=(5, 1, 3), calibrator=fitted)


# ------------------------------------------------------------------------------------------------------------- numbers


def test_values_are_those_of_the_metrics(part: Images, found: Shift) -> None:
    assert found.severities == (1, 3, 5) and found.methods == ("uncalibrated", "temperature")
    network = Colours()
    clean = predict(network, part, mean=MEAN, std=STD)
    worse = predict(network, Images(corrupt(part.pixels, "fog", 3), part.labels), mean=MEAN, std=STD)
    for metric in (accuracy, ece, nll):
        assert found.value(metric.name) == metric(clean, part.labels, from_logits=True)
        assert found.value(metric.name, "fog", 3) == metric(worse, part.labels, from_logits=True)
    fitted = make_calibrator("temperature").fit(clean.double(), part.labels)
    assert found.value("ece", "fog", 3, "temperature") == ece(fitted.predict_proba(worse), part.labels)


def test_means(found: Shift) -> None:
    for severity in found.severities:
        for method in found.methods:
            values = found.values("nll", severity, method)
            assert found.value("nll", severity=severity, method=method) == pytest.approx(sum(values) / 3)
    assert found.row("ece", group="mean:5").params == {"corruption": "mean", "severity": 5}
    assert len(found.rows) == (1 + 9 + 3) * 2 * 3


def test_the_same_seed_is_the_same_chance(part: Images) -> None:
    values = []
    for seed in (0, 0, 1):
        found = under_shift(
            Colours(), part, mean=MEAN, std=STD, corruptions=["gaussian-noise"], severities=[5], seed=seed
        )
        values.append(found.value("nll", severity=5))
    assert values[0] == values[1] != values[2]


def test_images_are_corrupted_when_they_are_read(part: Images) -> None:
    worse = Corrupted(part, "gaussian-noise", 2, seed=7)
    order = torch.arange(len(part)).flip(0)
    (batch,) = worse.batches(order, 100, device="cpu")
    expected = corrupt(part.pixels[order], "gaussian-noise", 2, seed=7)
    assert torch.equal(batch.pixels, expected) and torch.equal(batch.indices, order)
    assert len(worse) == 90 and worse.shape == (12, 12, 3) and torch.equal(worse.labels, part.labels)
    sizes = [
        len(batch.labels)
        for batch in worse.take(torch.arange(50)).to("cpu").batches(torch.arange(50), 20, device="cpu")
    ]
    assert sizes == [20, 20, 10]


def test_by_default_it_is_the_benchmark(part: Images) -> None:
    assert len(usual_corruptions(part)) == 15
    assert usual_corruptions(part)[0] == CORRUPTIONS.names[0]
    grey = usual_corruptions(images(10, 1))
    assert not any(CORRUPTIONS[name].needs_colour for name in grey)
    assert under_shift(Colours(), part, mean=MEAN, std=STD, severities=[1]).corruptions == usual_corruptions(part)


def test_without_pillow_jpeg_is_refused_before_any_work(part: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)

    def forbidden(*_: object) -> None:
        raise AssertionError("it began to measure")

    with pytest.raises(MissingExtraError, match=r"jpeg-compression needs Pillow: pip install 'temperance\[images\]'"):
        under_shift(Colours(), part, mean=MEAN, std=STD, progress=forbidden)
    assert len(under_shift(Colours(), part, mean=MEAN, std=STD, corruptions=["contrast"], severities=[1]).rows) == 6


def test_one_corruption_has_no_mean(part: Images) -> None:
    found = under_shift(Colours(), part, mean=MEAN, std=STD, corruptions=["fog"], severities=[2])
    assert {row.group for row in found.rows} == {"", "fog:2"}
    assert found.value("ece", severity=2) == found.value("ece", "fog", 2)
    printed = io.StringIO()
    Console(file=printed, width=80).print(found)
    for said in (printed.getvalue(), shift_page(found).split("</style>")[1].split("<script")[0]):
        assert "mean" not in said and "1 corruptions" not in said and "1 severities" not in said


def test_the_network_stays_in_its_mode(part: Images) -> None:
    network = Colours().train()
    under_shift(network, part, mean=MEAN, std=STD, corruptions=["fog"], severities=[1])
    assert network.training


def test_some_of_a_part(part: Images) -> None:
    some = some_of(part, 20, seed=3)
    assert len(some) == 20 and torch.equal(some.labels, some_of(part, 20, seed=3).labels)
    assert some_of(part, 1000) is part


def test_bad_input(part: Images) -> None:
    with pytest.raises(InputError, match="no corruption named 'gauss-noise'; did you mean gaussian-noise"):
        under_shift(Colours(), part, corruptions=["gauss-noise"], mean=MEAN, std=STD)
    for severities in ((), (0,), (6,), (1.5,), (True,), ("a", 1)):
        with pytest.raises(InputError, match="severities must be whole numbers from 1 to 5"):
            under_shift(Colours(), part, severities=severities, mean=MEAN, std=STD)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- what is said of it


def by_hand(errors: dict[str, list[float]], p_values: tuple[float, float], *, n: int = 900) -> Shift:
    """ECE of each method on clean images and under two corruptions at severity 4; accuracy is 0.9, then 0.5."""
    rows = []
    for method, (clean, *corrupted) in errors.items():
        told = {"": clean, "fog:4": corrupted[0], "snow:4": corrupted[1], "mean:4": sum(corrupted) / 2}
        for group, error in told.items():
            for metric, value in (("ece", error), ("accuracy", 0.5 if group else 0.9)):
                rows.append(Row("net", "test", group, method, {}, metric, value, math.nan, math.nan, n, 0.0))
    moves = [error - clean for error in corrupted]
    changes = {
        name: Difference(by, by - 0.01, by + 0.01, 0.95, p)
        for name, by, p in zip(("fog", "snow"), moves, p_values, strict=True)
    }
    provenance = Provenance.of({}, {"name": "net", "n": n}, 0)
    return Shift(tuple(rows), provenance, ("fog", "snow"), (4,), tuple(errors), changes)


def test_the_verdict() -> None:
    assert by_hand({"uncalibrated": [0.04, 0.10, 0.30]}, (0.02, 0.03)).verdict == (
        "The calibration error grows under 2 of 2 corruptions, by more than chance. At severity "
        "4 accuracy goes from 90.0 % to 50.0 % on average and the expected calibration error from 4.0 % to 20.0 %; it "
        "is largest under snow, 30.0 %."
    )
    same = by_hand({"uncalibrated": [0.20, 0.10, 0.30]}, (0.02, 0.03)).verdict
    assert "50.0 % on average and the expected calibration error stays at 20.0 %;" in same
    repaired = by_hand({"uncalibrated": [0.04, 0.10, 0.30], "vector": [0.02, 0.025, 0.019]}, (0.5, 0.5))
    assert repaired.verdict.startswith("The calibration error changes by less than 2 points when images get worse.")
    assert repaired.verdict.endswith("Over all corruptions and severities vector takes it from 20.0 % to 2.2 %.")
    assert repaired.worst == "fog"


@pytest.mark.parametrize(
    ("errors", "p_values", "said"),
    [
        ([0.101, 0.134, 0.134], (0.001, 0.001), "grows under 2 of 2 corruptions, by more"),
        ([0.101, 0.134, 0.134], (0.001, 0.2), "grows under 1 of 2 corruptions, by more"),
        ([0.101, 0.134, 0.134], (0.03, 0.06), "too few to tell"),  # corrected for two, 0.03 is not enough
        ([0.2, 0.1, 0.1], (0.001, 0.001), "shrinks under 2 of 2 corruptions, by more"),
        ([0.2, 0.1, 0.3], (0.001, 0.001), "grows under 1 of 2 corruptions and shrinks under 1, by more than chance."),
        ([0.2, 0.205, 0.2], (0.6, 0.6), "changes by less than 2 points"),
        ([0.2, 0.215, 0.2], (0.6, 0.6), "too few to tell"),  # the change may well be 2 points
    ],
)
def test_a_significant_change_is_reported(errors: list[float], p_values: tuple[float, float], said: str) -> None:
    assert said in by_hand({"uncalibrated": errors}, p_values).verdict
    few = by_hand({"uncalibrated": errors}, p_values, n=20).verdict
    assert few.startswith("20 images are too few to tell whether the calibration error changes")


def test_the_page(found: Shift, tmp_path: Path) -> None:
    page = Page(shift_page(found))
    assert {"Noise", "Weather"} <= {text for _, text in page.all("b")}
    # Three metrics, of which accuracy is the same before and after; then every corruption before and after.
    assert len(page.all("path", "area")) == 5 and len(page.drawn("path", "line")) == 5 + 6
    rows = [row for row in page.table("severities") if row[0].startswith("fog")]
    assert rows[0][2] == f"{100 * found.value('ece', 'fog', 1, 'temperature'):.2f}"
    write_report(found, tmp_path / "shift.html")
    assert (tmp_path / "shift.html").read_text() == shift_page(found)


# -------------------------------------------------------------------------------------------------------- command line


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shift")
    train, test = images(120), images(60)
    np.savez(
        place / "data.npz",
        train_images=train.pixels.numpy(),
        train_labels=train.labels.numpy(),
        test_images=test.pixels.numpy(),
        test_labels=test.labels.numpy(),
    )
    options = ["--network", "small-cnn", "--epochs", "1", "--batch-size", "30", "--bootstrap", "0", "--device", "cpu"]
    assert main(["train", str(place / "data.npz"), "-o", str(place / "run"), *options]) == 0
    return place / "run"


@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")  # fitted on twelve samples
def test_a_table_and_files(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrator = tmp_path / "cal.safetensors"
    assert main(["fit", "temperature", str(run_folder / "predictions.npz"), "-o", str(calibrator)]) == 0
    capsys.readouterr()
    options = ["--corruptions", "fog, brightness", "--severities", "1,5", "--limit", "40", "--device", "cpu"]
    command = [
        "shift",
        str(run_folder),
        *options,
        "--calibrator",
        str(calibrator),
        "--report",
        str(tmp_path / "r.html"),
    ]
    assert main([*command, "--csv", str(tmp_path / "r.csv")]) == 0
    out = capsys.readouterr().out
    for word in (
        "run · 40 images · 2 corruptions · 2 severities",
        "ECE, uncalibrated",
        "ECE, temperature",
        "mean",
        "fog",
    ):
        assert word in out
    rows = list(csv.DictReader(io.StringIO((tmp_path / "r.csv").read_text())))
    assert {row["group"] for row in rows} == {"", "fog:1", "fog:5", "brightness:1", "brightness:5", "mean:1", "mean:5"}
    assert "<svg" in (tmp_path / "r.html").read_text()


def test_json_and_moved_data(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    moved = tmp_path / "moved.npz"
    moved.write_bytes((run_folder.parent / "data.npz").read_bytes())
    options = ["--corruptions", "contrast", "--severities", "2", "--data", str(moved), "--device", "cpu", "--json"]
    assert main(["shift", str(run_folder), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["provenance"]["settings"]["n"] == 60 and len(found["rows"]) == 6


def test_wrong_input_is_a_sentence(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not the folder of a run" in refused(["shift", str(tmp_path)], capsys)
    assert "whole numbers with commas" in refused(["shift", str(run_folder), "--severities", "all"], capsys)
    assert "no corruption named" in refused(
        ["shift", str(run_folder), "--corruptions", "rain", "--device", "cpu"], capsys
    )
