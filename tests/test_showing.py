"""Results and calibrators in a notebook and as tables."""

import csv
import io
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from conftest import random_predictions
from report import samples
from temperance.calibrators import CALIBRATORS, Auto, Temperature
from temperance.errors import MissingExtraError
from temperance.jobs.ood import compare_ood
from temperance.jobs.results import Tabular
from temperance.markup import VOID
from temperance.showing import short

RESULTS: dict[str, Callable[[], Tabular]] = {
    "Evaluation": samples.evaluation,
    "Comparison": samples.comparison,
    "OODComparison": lambda: compare_ood(samples.predictions(), samples.predictions(seed=1), bootstrap=20),
    "Shift": samples.shift,
    "Retrained": samples.retrained,
    "Run": lambda: samples.run()[0],
}


@pytest.fixture(scope="module", params=RESULTS)
def result(request: pytest.FixtureRequest) -> Tabular:
    return RESULTS[request.param]()


def check_html(text: str) -> None:
    """Small, closed tag by tag, without scripts or anything to load, and in the notebook's own colours."""
    from html.parser import HTMLParser

    class Balanced(HTMLParser):
        opened: list[str]

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            assert tag != "script" and not {"src", "href"} & {name for name, _ in attrs}
            if tag not in VOID:
                self.opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.opened.pop() == tag

    parser = Balanced()
    parser.opened = []
    parser.feed(text)
    assert not parser.opened
    assert len(text) < 10_000
    assert "#" not in text.partition("</style>")[0] and "url(" not in text


def test_a_result_is_short_in_words_and_a_table_in_a_notebook(result: Tabular) -> None:
    assert repr(result) == f"<{type(result).__name__}: {result.title}>"
    assert "\n" not in repr(result) and len(repr(result)) < 250  # two long file names
    text = result._repr_html_()
    check_html(text)
    assert "<table>" in text


def test_a_result_is_printed_as_the_command_line_does(result: Tabular) -> None:
    printed = str(result)
    assert printed.startswith(result.title[:20]) and "│" in printed and "\x1b" not in printed
    assert getattr(result, "verdict", "").split(". ")[0] in " ".join(printed.split())


def test_class_frequencies_are_short_in_words_and_a_table_in_a_notebook() -> None:
    logits, labels = random_predictions(300, 40)
    found = Temperature().fit(logits, labels).adapt(logits)
    assert repr(found) == "<PriorShift: class frequencies of 300 predictions>"
    check_html(found._repr_html_())
    assert found.verdict in found._repr_html_() and "40 numbers" in found._repr_html_()


def test_html_is_escaped() -> None:
    """A name of the samples is <script>alert(1)</script>."""
    text = samples.evaluation()._repr_html_()
    assert "<script" not in text


def test_every_kind_of_table_has_the_rows_of_the_csv(result: Tabular) -> None:
    expected = list(csv.DictReader(io.StringIO(result.to_csv())))
    frame = pytest.importorskip("pandas") and result.to_pandas()
    assert list(frame.columns) == list(expected[0]) and len(frame) == len(expected)
    table = pytest.importorskip("pyarrow") and result.to_arrow()
    assert table.column_names == list(frame.columns) and table.num_rows == len(frame)
    for left, right in zip(frame.to_dict("records"), table.to_pylist(), strict=True):
        for name, value in left.items():
            same = value == right[name] or (math.isnan(value) and math.isnan(right[name]))
            assert same, name


def test_polars_has_the_same_table(result: Tabular) -> None:
    pytest.importorskip("polars", reason="polars is not installed")
    frame = result.to_polars()
    assert frame.columns == list(csv.DictReader(io.StringIO(result.to_csv())).fieldnames or ())
    assert frame.to_arrow().to_pylist()[0] == pytest.approx(result.to_arrow().to_pylist()[0], nan_ok=True)


def test_parameters_are_json_in_a_table() -> None:
    frame = samples.evaluation().to_pandas()
    assert json.loads(frame.params[frame.metric == "ece"].item()) == {"metric": {"n_bins": 15}}


@pytest.mark.parametrize("name", ["pandas", "polars", "pyarrow"])
def test_a_missing_library_is_one_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = samples.shift()
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"{name}: pip install 'temperance\[tables\]'"):
        getattr(found, "to_arrow" if name == "pyarrow" else f"to_{name}")()


@pytest.mark.parametrize("method", list(CALIBRATORS), ids=CALIBRATORS.names)
@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_a_calibrator_shows_itself(method: Any) -> None:
    made = method()
    assert repr(made) == f"{method.__name__}()"
    check_html(made._repr_html_())
    made.fit(*random_predictions(200, 2, seed=0))
    assert repr(made) == f"{method.__name__}() for 2 classes"
    text = made._repr_html_()
    check_html(text)
    assert made.name in text and all(name in text for name in made.learnt)


def test_a_calibrator_names_the_settings_that_were_chosen() -> None:
    assert repr(Temperature(objective="focal:gamma=2")) == "Temperature(objective='focal:gamma=2')"
    made = Temperature()
    made._keep("n_classes", torch.tensor(3))
    made._keep("temperature", torch.tensor(1.25, dtype=torch.float64))
    assert "1.25" in made._repr_html_()


def test_a_pool_of_calibrators_stays_short() -> None:
    made = Auto().fit(*random_predictions(300, 3, seed=0))
    assert repr(made) == "Auto() for 3 classes"


def test_short_values() -> None:
    assert short(1.23456) == "1.235"
    assert short([1.0, 2.0]) == "1, 2"
    assert short([[0.0, 1.0], [math.inf, 3.0]]) == "4 numbers, 0 … 3"
    assert short({"a": 1.5, "b": []}) == "a 1.5; b none"
