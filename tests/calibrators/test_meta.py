"""Meta-Cal: thresholds, temperatures, and what happens to the rows that it gives up."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy as scipy_entropy

from conftest import random_predictions
from temperance.calibrators import MetaAcc, MetaMis
from temperance.calibrators.meta import EntropyThreshold, entropy, entropy_for_accuracy
from temperance.calibrators.temperature import Temperature
from temperance.errors import InputError


def given_threshold(threshold: float, temperature: float) -> MetaMis:
    found = MetaMis().fit(*random_predictions(100, 3))
    found.threshold.fill_(threshold)
    found.temperature.fill_(temperature)
    return found


def test_prediction(vectors: Any, fixture_a: Any) -> None:
    expected = vectors["metacal_predict_A"]
    logits, _ = fixture_a
    assert np.allclose(entropy(torch.tensor(logits)), expected["entropy"], atol=1e-6)
    probs = given_threshold(expected["threshold"], expected["T"]).predict_proba(logits)
    assert ((np.ptp(probs, axis=1) > 1e-9) == expected["kept"]).all()
    assert np.allclose(probs[0], expected["probs_row0"], atol=1e-6)
    assert np.allclose(probs[5], expected["probs_row5"], atol=1e-6)


def test_threshold(vectors: Any) -> None:
    """The quantile is one of the values, not between two of them."""
    expected = vectors["metacal_mis_threshold"]
    found = torch.tensor(expected["entropies"]).quantile(1 - expected["alpha"], interpolation="higher")
    assert float(found) == pytest.approx(expected["thr_higher"])


def split(found: EntropyThreshold, logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows are kept, and which predictions of the network are right."""
    return (found.predict_proba(logits) - 1 / logits.shape[1]).abs().amax(1) > 1e-12, logits.argmax(1) == labels


def test_at_most_alpha_of_the_right_ones_are_given_up() -> None:
    (logits, labels), (unseen, truth) = random_predictions(20_000, 5), random_predictions(20_000, 5, seed=1)
    for alpha in (0.05, 0.2):
        found = MetaMis(alpha=alpha).fit(logits, labels)
        kept, right = split(found, unseen, truth)
        assert float((~kept)[right].double().mean()) == pytest.approx(alpha, abs=0.03)


def test_the_rest_has_the_accuracy_asked_for() -> None:
    (logits, labels), (unseen, truth) = random_predictions(20_000, 5), random_predictions(20_000, 5, seed=1)
    overall = float((logits.argmax(1) == labels).double().mean())
    for accuracy in (None, 0.8):
        found = MetaAcc(accuracy=accuracy).fit(logits, labels)
        kept, right = split(found, unseen, truth)
        wanted = (1 + overall) / 2 if accuracy is None else accuracy
        assert found.info["accuracy"] == pytest.approx(wanted, abs=0.03)
        assert float(right[kept].double().mean()) == pytest.approx(wanted, abs=0.05)


def test_threshold_and_temperature_by_hand() -> None:
    logits, labels = random_predictions(300, 4)
    right = (logits.argmax(1) == labels).nonzero().squeeze(1)
    order = torch.randperm(len(right), generator=torch.Generator().manual_seed(7))
    drawn = right[order[: len(right) // 10]]
    scores = scipy_entropy(logits.softmax(1).numpy(), axis=1)
    threshold = np.quantile(scores[drawn], 0.9, method="higher")
    found = MetaMis(alpha=0.1, seed=7).fit(logits, labels)
    assert float(found.threshold) == pytest.approx(threshold, abs=1e-12)
    others = np.setdiff1d(np.arange(300), drawn.numpy())
    below = torch.tensor(others[scores[others] <= threshold])
    assert torch.allclose(found.temperature, Temperature().fit(logits[below], labels[below]).temperature)


def test_the_curve_from_accuracy_to_entropy() -> None:
    uncertainty = torch.arange(40, dtype=torch.float64) / 10
    right = torch.cat([torch.ones(20), torch.zeros(20)]).double()
    accuracies, heights = entropy_for_accuracy(uncertainty, right)
    # Twenty bins of two; the accuracy up to bin b is 1 for the first ten and 10 / b after that.
    expected = [10 / b for b in range(20, 10, -1)] + [1.0]
    assert accuracies.tolist() == pytest.approx(expected)
    assert heights[:10].tolist() == pytest.approx([0.05 + 0.2 * b for b in range(19, 9, -1)])
    assert heights[-1] == pytest.approx(np.mean([0.05 + 0.2 * b for b in range(10)]))


def test_the_seed_decides_and_nothing_else() -> None:
    logits, labels = random_predictions(500, 4)
    for method in (MetaMis, MetaAcc):
        first, again, other = (method(seed=s).fit(logits, labels) for s in (1, 1, 2))
        assert torch.equal(first.threshold, again.threshold) and not torch.equal(first.threshold, other.threshold)


@pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
def test_saturated_predictions_are_not_all_given_up() -> None:
    """Their entropies are all zero, the threshold too: what lies on it is kept."""
    logits, labels = random_predictions(200, 4)
    logits = torch.where(logits == logits.amax(1, keepdim=True), 1e4, 0.0)
    kept, _ = split(MetaMis().fit(logits, labels), logits, labels)
    assert bool(kept.all())


def test_where_nothing_is_right_nothing_is_kept() -> None:
    logits, _ = random_predictions(50, 4)
    found = MetaMis().fit(logits, logits.argmin(1))
    assert torch.allclose(found.predict_proba(logits), torch.full((50, 4), 0.25, dtype=torch.float64))


def test_data_that_do_not_go_with_the_settings_are_refused() -> None:
    logits, labels = random_predictions(400, 4)
    with pytest.raises(InputError, match=r"accuracy must lie between 0\.\d+, that of all predictions, and"):
        MetaAcc(accuracy=0.1).fit(logits, labels)
    with pytest.raises(InputError, match="needs at least 10 samples to fit; got 9"):
        MetaMis().fit(logits[:9], labels[:9])
