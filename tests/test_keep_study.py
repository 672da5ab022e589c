"""Which epoch's network to keep: the study, and what the docs say of it."""

import pytest

from benchmarks.papers.outputs import RESULTS
from benchmarks.quality.keep import KEPT, LABELS, Kept, markdown, summary, trained
from benchmarks.quality.table import read


@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_each_rule_keeps_an_epoch() -> None:
    found = trained(0.2, 0, epochs=8)
    assert set(found) == set(KEPT) and found["last"].epoch == 8
    assert all(1 <= one.epoch <= 8 and one.accuracy > 0.4 for one in found.values())
    assert found == trained(0.2, 0, epochs=8)


def test_gains_are_paired_by_seed() -> None:
    runs = [
        {"last": Kept(nll + 0.1, 0.5, 9), "best": Kept(nll, 0.5, 4), "refined": Kept(nll, 0.6, 5)}
        for nll in (1.0, 2.0, 3.0)
    ]
    last, best, refined = summary(runs)
    assert (last["nll"], last["epoch"], last["refined_gains"]) == (2.1, 9, [0.1, 0.1, 0.1])
    assert best["refined_gains"] == [0, 0, 0] and refined["refined_gains"] is None
    assert "| `last` | 2.100 | 50.0 | 9 | +0.100 (+0.100 … +0.100) |" in markdown([{"labels": "any", **last}])


def test_the_sentences_about_it() -> None:
    """docs/training.md: as good as the better of the other two; better than `best` is not shown."""
    lines = {(line["labels"], line["keep"]): line for line in read(RESULTS / "keep.jsonl")}
    for labels in LABELS:
        better = min(lines[labels, "last"], lines[labels, "best"], key=lambda line: line["nll"])
        _, low, high = better["refined_gains"]
        assert low <= 0 <= high
        _, low, high = lines[labels, "best"]["refined_gains"]
        assert low <= 0 <= high
        assert lines[labels, "best"]["seeds"] == 20
