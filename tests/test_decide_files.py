"""Decisions about files: matrices of costs, wrong input, every output, real predictions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import run
from conftest import random_predictions
from temperance import decide, read_predictions
from temperance.calibrators import Temperature
from temperance.errors import InputError
from temperance.jobs.decisions import Decisions
from temperance.predictions import Predictions, write_predictions
from test_decide import CLASSES, two_classes


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("animals") / "animals.npz"
    logits, labels = random_predictions(600, 3)
    write_predictions(path, Predictions.of(logits, labels, from_logits=True, class_names=CLASSES))
    return path


def test_a_matrix_is_matched_by_name(animals: Path, tmp_path: Path) -> None:
    values = [[0, 2, 3, 1], [4, 0, 5, 1], [6, 7, 0, 1]]
    ordered, shuffled = tmp_path / "ordered.csv", tmp_path / "shuffled.tsv"
    ordered.write_text("cat,dog,owl,call\n" + "\n".join(",".join(map(str, row)) for row in values))
    shuffled.write_text("class\tcall\towl\tdog\tcat\nowl\t1\t0\t7\t6\ncat\t1\t3\t2\t0\ndog\t1\t5\t0\t4\n")
    mapping = {name: {cls: values[j][d] for j, cls in enumerate(CLASSES)} for d, name in enumerate((*CLASSES, "call"))}
    names, found = (*CLASSES, "call"), []
    for costs in (ordered, str(shuffled), mapping, {n: [row[d] for row in values] for d, n in enumerate(names)}):
        each = decide(animals, costs=costs, method="temperature")
        place = [each.costs.decisions.index(name) for name in names]
        found.append([each.costs.values[:, place].tolist(), [p.cost for p in each.policies]])
    assert found[0][0] == values and all(each == found[0] for each in found)


def test_classes_that_are_numbers_are_not_costs(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    path.write_text("true,0,1\n1,7,0\n0,0,5\n")
    found = decide(*two_classes(50, 0), from_logits=True, costs=path, method="identity").costs
    assert found.decisions == ("0", "1") and found.values.tolist() == [[0, 5], [7, 0]]
    path.write_text("no,yes\n0,1\n1,0\n")
    assert decide(*two_classes(50, 0), from_logits=True, costs=path, method="identity").costs.decisions == ("no", "yes")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("class;a;b\ncat;0,5;2\n", "must be separated by commas, and decimals need a point"),
        ("cat,dog\n1,2\n2,1\n", "a row for each of the 3 classes; got 2 rows below the header cat, dog"),
        ("a,b\n1,2\n2,1\nnan,0\n", "that of 'a' for the class 'owl' is nan"),
        ("a,b\n1,2\n2,1,7\n0,1\n", "line 3 has 3 cells, and the header has 2"),
        ("class,a,b\ncat,1,2\ndog,1,much\nowl,1,3\n", "line 3: a cost must be a number; got 'much'"),
        ("class,a,b\ncat,1,2\ndog,1,0\n", "there are no costs for the class 'owl'; got cat, dog"),
        ("class,a,b\ncat,1,2\ndog,1,0\nowl,1,3\nbat,1,1\n", "'bat' is not a class; the classes are cat, dog, owl"),
        ("class,a,b\ncat,1,2\ndog,1,0\nowl,1,3\nowl,1,3\n", "'owl' is there twice"),
        ("class,a\ncat,1\ndog,1\nowl,1\n", "at least two decisions; got a"),
        ("a,a\n1,2\n3,4\n5,6\n", "every decision must have a name of its own; 'a' is there twice"),
        ("a,b\n1,1\n3,3\n5,5\n", "every decision costs the same whatever the class"),
        ("", "is empty"),
    ],
)
def test_wrong_matrices_are_refused(animals: Path, tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "costs.csv"
    path.write_text(text)
    said = run("decide", animals, "--costs", path)
    assert said.code == 2 and sentence in said.err and said.err.count("\n") == 1 and str(path) in said.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "the costs are missing; give false_alarm and miss, or a matrix, costs="),
        ({"false_alarm": 1}, "the costs are missing"),
        ({"false_alarm": -1, "miss": 1}, "false_alarm must be a number of at least 0; got -1"),
        ({"false_alarm": float("nan"), "miss": 1}, "false_alarm must be"),
        ({"false_alarm": 0, "miss": 0}, "every decision costs the same"),
        ({"false_alarm": 1, "miss": 2, "abstain": float("inf")}, "abstain must be a number or none; got inf"),
        ({"costs": np.eye(2), "miss": 1}, "not both"),
        (
            {"costs": np.eye(3)},
            r"a row for each of the 2 classes and a column for each decision; got the shape \(3, 3\)",
        ),
        ({"costs": [1, 2]}, r"got the shape \(2,\)"),
        ({"costs": {}}, "at least two decisions"),
        ({"costs": {"a": [1, 2, 3], "b": [0, 0]}}, "costs of 'a' must be a number for each of the 2 classes"),
        ({"costs": {"a": {"no": 1, "yes": 2}, "b": [0, 0]}}, "they are numbers from 0"),
        ({"false_alarm": 1, "miss": 1, "method": "magic"}, "there is no calibrator named 'magic'"),
        ({"false_alarm": 1, "miss": 1, "method": "auto", "calibrator": Temperature()}, "give one of them"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        decide([[0.2, 0.8], [0.6, 0.4]], [1, 0], **options)


def test_wrong_input_is_refused(animals: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="have weights, and the costs are of samples that count equally"):
        decide(Predictions.of([[0.2, 0.8]], [1], weights=[2]), false_alarm=1, miss=1)
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(np.eye(2), columns=["a", "b"])
    with pytest.raises(InputError, match=r"pass a table as table\.to_dict\(\)"):
        decide([[0.2, 0.8]], [1], costs=table)
    assert decide([[0.2, 0.8]] * 9, [1] * 9, costs=table.to_dict(), method="temperature").costs.decisions == ("a", "b")
    for arguments, sentence in (
        (["--false-alarm", "1", "--miss", "2"], "the costs of 3 classes are a matrix; give it as --costs FILE.csv"),
        (["--costs", "nowhere.csv"], "nowhere.csv does not exist"),
        (["--costs", str(animals)], "a matrix of costs is a .csv file"),
        (["--false-alarm", "much"], "--false-alarm must be a number; got 'much'"),
    ):
        said = run("decide", animals, *arguments)
        assert said.code == 2 and sentence in said.err, said.err
    path = tmp_path / "two.csv"
    path.write_text("probs_0,probs_1,label\n0.2,0.8,1\n0.6,0.4,0\n")
    assert "give --false-alarm and --miss, or a matrix, --costs FILE.csv" in run("decide", path).err
    assert (
        "--false-alarm must be a number of at least 0" in run("decide", path, "--false-alarm", "-1", "--miss", "1").err
    )


def test_every_output(animals: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.csv"
    costs.write_text("cat,dog,owl,call\n0,2,3,1\n4,0,5,1\n6,7,0,1\n")
    page, table = tmp_path / "page.html", tmp_path / "table.csv"
    asked: list[str | Path] = ["decide", animals, "--costs", costs, "--method", "temperature"]
    said = run(*asked, "--json", "--report", page, "--csv", table)
    found = json.loads(said.out)
    assert found["provenance"]["settings"] == {"calibrator": "temperature", "n": 600, "k": 3}
    assert said.code == 0 and found["costs"]["decisions"] == ["cat", "dog", "owl", "call"] and found["rule"] == []
    assert [policy["name"] for policy in found["policies"]][1:] == [
        "most probable class",
        "these probabilities",
        "calibrated by temperature",
    ]
    assert table.read_text().startswith("policy,decision,share,cost,low,high\n") and "The costs" in page.read_text()
    shown = " ".join(run(*asked).out.split())
    assert found["verdict"] in shown and "Calibrated by temperature, each sample by a fit on others." in shown


def consistent(found: Decisions) -> None:
    """Costs, shares and intervals fit together."""
    for policy in found.policies:
        assert policy.low <= policy.cost <= policy.high and sum(policy.shares) == pytest.approx(1)
    assert found.constant.cost >= 0 and found.verdict


@pytest.mark.parametrize("name", ["binary/adult_rf", "tabular/spambase__rf"])
def test_real_binary_predictions(shared_data: Path, tmp_path: Path, name: str) -> None:
    path = shared_data / "more" / f"{name}.npz"
    said = run("decide", path, "--false-alarm", "1", "--miss", "10", "--report", tmp_path / "page.html", "--json")
    assert said.code == 0 and len(json.loads(said.out)["curve"]["thresholds"]) == 200
    consistent(decide(read_predictions(path), false_alarm=1, miss=5, abstain=0.2))


def test_real_predictions_of_many_classes(shared_data: Path) -> None:
    path = shared_data / "logits" / "c100_resnet20.npz"
    costs = np.random.default_rng(0).exponential(1, (100, 100))
    np.fill_diagonal(costs, 0)
    found = decide(path, costs=costs, method="temperature")
    consistent(found)
    assert found.saving is not None and found.most_probable is not None
    assert found.given.cost < found.most_probable.cost
