"""temperance gradients: every figure, losses with settings, and what it refuses; temperance list losses."""

import json
from pathlib import Path

import pytest
import torch

from temperance.cli import main
from temperance.losses import LOSSES, make_loss

PAIR = ("focal:gamma=3", "dual-focal:gamma=3")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--figure", "smoothing"],
        ["label-smoothing:smoothing=0.1", "crl", "mdca", "--against", "probability", "--classes", "4"],
        ["--figure", "weights"],
        ["--figure", "rival"],
        ["--figure", "cdf", "au:cdf_bandwidth=0.2"],
        ["acls:base=focal", "acls:base=mdca", "acls:base=crl", "mdca:base=focal:base.gamma=2"],
    ],
    ids=["smoothing", "chosen", "weights", "rival", "cdf", "bases"],
)
def test_figures(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "figure.html"
    assert main(["gradients", *arguments, "-o", str(target)]) == 0
    assert "<svg viewBox" in target.read_text()
    out, err = capsys.readouterr()
    assert str(target) in out and not err


def test_what_is_said_of_dual_focal_loss_is_what_it_does(tmp_path: Path) -> None:
    """Of wrong predictions, it counts some as focal loss does; with a higher gamma it counts them less."""
    label = torch.tensor([0.02, 0.3])  # the rival has 0.45
    rest = (0.55 - label) / 9
    probs = torch.column_stack([label, torch.full((2,), 0.45), *(rest for _ in range(9))])
    losses = {name: make_loss(name, reduction="none")(probs.log(), torch.zeros(2, dtype=torch.int64)) for name in PAIR}
    focal, dual = (losses[name] for name in PAIR)
    assert dual[0] == pytest.approx(float(focal[0])) and dual[1] > focal[1]
    assert main(["gradients", *PAIR, "--figure", "rival", "-o", str(tmp_path / "figure.html")]) == 0
    text = (tmp_path / "figure.html").read_text()
    assert "counts wrong predictions more" not in text and "its line has a step" in text


def test_the_page_says_what_is_shown(tmp_path: Path) -> None:
    target = tmp_path / "figure.html"
    assert main(["gradients", "focal:gamma=2", "-o", str(target)]) == 0
    text = target.read_text()
    assert "focal:gamma=2" in text and "well-fitted samples count less" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["focl"], "there is no loss named 'focl'; did you mean focal"),
        (["focal:gama=2"], "did you mean gamma"),
        (["focal:gamma"], "written key=value"),
        (["focal:gamma=-1"], "gamma must be a number"),
        (["focal", "--figure", "cdf"], "the figure cdf is of the au loss"),
        (["acls:base=crl", "--figure", "rival"], "depends on what it has recorded of each sample"),
        (["crl", "--figure", "weights"], "draw its smoothing, with --figure smoothing"),
        (["focal", "--classes", "1"], "--classes must be a whole number from 3 to 10000"),
        (
            ["--figure", "rival", "--classes", "4"],
            "--against and --classes are for the figure smoothing; leave them out",
        ),
        (["--figure", "weights", "--against", "logit"], "are for the figure smoothing; leave them out for weights"),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "figure.html"
    assert main(["gradients", *arguments, "-o", str(target)]) == 2
    assert message in capsys.readouterr().err
    assert not target.exists()


def test_the_format_is_checked_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gradients", "no-such-loss", "-o", str(tmp_path / "figure.pdf")]) == 2
    assert f"a page is saved as .html; call it {tmp_path / 'figure.html'}" in capsys.readouterr().err


def test_losses_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "losses", "--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert list(found) == LOSSES.names
    assert found["focal"]["settings"]["gamma"] == 3.0
    assert found["crl"]["settings"]["n_samples"] == "required"
    assert found["mdca"]["claims"]["per_sample"] is False


@pytest.mark.parametrize(
    ("name", "said"), [("au", "the loss whose rows are weighted"), ("acls", "the loss it is added to")]
)
def test_the_base_of_a_loss_is_weighed_or_added_to(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "losses", name, "--json"]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("losses", "focl", "there is no loss named 'focl'; did you mean focal"),
        ("heads", "maccal", "there is no head named 'maccal'; did you mean mac-cal"),
    ],
)
def test_a_wrong_name_is_of_one_method(kind: str, name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind, name]) == 2
    assert said in capsys.readouterr().err
