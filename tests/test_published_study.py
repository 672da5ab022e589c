"""The table beside published numbers: what the page says of it is what is in the file of results."""

import re
from pathlib import Path

import pytest

from benchmarks.quality.published import SHARED, markdown
from benchmarks.quality.table import read

ROOT = Path(__file__).resolve().parent.parent
ROWS = read(ROOT / "benchmarks" / "results" / "published.jsonl")
THEIRS = {row["method"]: row for row in ROWS if row["who"] == "published"}
OURS = {row["method"]: row for row in ROWS if row["who"] == "temperance"}
PUBLISHED = {
    *("nll", "ECE_ew", "ECE_em", "ECE_r2", "ECE_s_r1", "ECE_s_r2", "dECE", "KDE_ECE", "KSerror", "MMCE", "ACE"),
    *("CWECE_a", "CWECE_s", "CWECE_r2", "tCWECE", "tCWECE_k", "SKCE", "DKDE_CE"),
}


@pytest.fixture(scope="module")
def said() -> str:
    """The part of the page, on one line."""
    page = (ROOT / "docs" / "results.md").read_text()
    return " ".join(page.partition("### Compared with a published table")[2].partition("\n## ")[0].split())


def test_every_published_metric_is_there_or_named_as_none_of_ours(said: str) -> None:
    assert len(PUBLISHED) == 18 and "Ten of the metrics are ours too" in said and len(SHARED) == 10
    assert set(re.findall(r"`(\w+)`", said)) & PUBLISHED == PUBLISHED - set(SHARED)


def test_the_same_predictions_have_the_same_values() -> None:
    both = (THEIRS["uncalibrated"], OURS["identity"])
    theirs, ours = (markdown([row]).splitlines()[2].split(" | ")[1:] for row in both)
    assert theirs == ours and len(theirs) == len(SHARED)


def test_what_is_said_of_the_table_is_in_it(said: str) -> None:
    lowest = min(row["nll"] for row in THEIRS.values())
    assert len(THEIRS) == 21 and "The NLL of `structured-matrix` and of `auto` is below that of all 20" in said
    assert OURS["structured-matrix"]["nll"] < lowest and OURS["auto"]["nll"] < lowest
    apart = [
        abs(OURS[mine]["nll"] / THEIRS[their]["nll"] - 1)
        for mine, their in (("temperature", "TS"), ("dirichlet", "Dir"), ("vector", "VS"))
    ]
    assert f"differ by at most {max(apart):.1%} of NLL".replace("%", " %") in said
    auto, plain = (f"{OURS[name]['ECE_ew']:.2%}".replace("%", " %") for name in ("auto", "temperature"))
    assert f"The ECE of `auto` is {auto} on this one network, that of `temperature` {plain}" in said
    assert OURS["temperature:objective=class-scaled"]["nll"] == pytest.approx(THEIRS["SCTL"]["nll"], rel=1e-3)
    assert f"({OURS['isotonic']['nll']:.3f} against {THEIRS['Iso']['nll']:.3f})" in said
    binned = sorted(THEIRS, key=lambda name: THEIRS[name]["ECE_ew"])[:2]
    assert set(binned) == {"SoftBin", "ScaBin"} and f"with an NLL of {THEIRS['ScaBin']['nll']:.3f}" in said
    diag = [OURS[name]["nll"] for name in OURS if name.startswith("order-preserving:variant=diag")]
    assert len(diag) == 2 and diag[0] < diag[1]
