"""Every calibrator on hard data: rare and missing classes, few samples, ties, logits that are too large or too easy."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from calibrators.fits import Method, data, each, few, fitted, is_probability
from temperance.calibrators import CALIBRATORS, Identity
from temperance.data.longtail import long_tailed
from temperance.errors import InputError, TemperanceWarning
from temperance.metrics import nll
from temperance.settings import defaults_of


@each
def test_a_class_that_never_occurs(method: Method) -> None:
    logits, labels = data()
    labels[labels == 2] = 1
    assert is_probability(method().fit(logits, labels).predict_proba(logits))


@each
@pytest.mark.parametrize("last_class", [True, False], ids=["all classes", "the last one missing"])
def test_a_long_tail(method: Method, last_class: bool) -> None:
    """Down to three samples of a class, or none: a new sample of it gets a probability, and claims hold."""
    logits, labels = data(1500, 10)
    tail = long_tailed(labels, 0.02)
    tail = tail[(labels[tail] < 9) | last_class]
    assert torch.bincount(labels[tail], minlength=10)[-2:].tolist() == [4, 3 if last_class else 0]
    found = method(prior="same").fit(logits[tail], labels[tail])
    new, truth = data(1000, 10, seed=1)
    log_probs = found(new)
    assert is_probability(log_probs.exp()) and bool(torch.isfinite(log_probs).all())
    if method.preserves_argmax:
        top = log_probs.gather(1, new.argmax(1, keepdim=True)).squeeze(1)
        assert bool((top >= log_probs.amax(1)).all())
    # Nowhere near as bad as the overflow of a class that was learnt to be impossible.
    assert float(-log_probs[truth == 9, 9].mean()) < 30


@each
def test_counting_classes_alike_makes_up_for_a_long_tail(method: Method) -> None:
    """Fitted to a tail by the class-balanced objective, an even test set is met nearly as by a fit to an even set."""
    if not method.takes_objective:
        return
    logits, labels = data(4000, 4)
    tail = long_tailed(labels, 0.05)
    new, truth = data(4000, 4, seed=1)
    settings: Any = {"objective": "class-balanced-nll", "prior": "same"}
    balanced = method(**settings).fit(logits[tail], labels[tail])
    even = method().fit(logits, labels)
    assert nll(balanced.predict_proba(new), truth) < nll(even.predict_proba(new), truth) + 0.02


@each
@few
def test_one_sample_of_each_class(method: Method) -> None:
    logits, _ = data(12, 12)
    found = method().fit(logits, torch.arange(12))
    assert is_probability(found.predict_proba(logits)) and is_probability(found.predict_proba(data(50, 12, seed=1)[0]))


@each
@few
def test_saturated_logits(method: Method) -> None:
    logits, labels = data()
    extreme = torch.where(logits == logits.amax(1, keepdim=True), 1e4, -1e4) + logits
    found = method().fit(extreme, labels)
    assert is_probability(found.predict_proba(extreme))
    assert is_probability(fitted(method).predict_proba(extreme))


@each
@few
def test_few_samples_are_enough_or_refused(method: Method) -> None:
    least = method.min_samples
    for n, k in ((least, 3), (max(2, least), 3), (max(3, least), 3), (max(12, least), 20)):
        logits, labels = data(n, k)
        labels = torch.arange(n) % k
        if n == 1:
            with pytest.raises(InputError, match="two classes") if method is not Identity else nullcontext():
                method().fit(logits, labels)
        else:
            assert is_probability(method().fit(logits, labels).predict_proba(logits))
    if method.min_samples > 1:
        with pytest.raises(InputError, match=f"at least {method.min_samples} samples"):
            method().fit(*data(method.min_samples - 1, 3))


@pytest.mark.parametrize("method", [m for m in CALIBRATORS if m.steady_from > 1], ids=lambda m: m.name)
def test_too_few_samples_to_be_steady_are_a_warning(method: Method) -> None:
    logits, labels = data(method.steady_from, 3)
    assert "double" not in method().fit(logits, labels).info.get("caution", "")
    with pytest.warns(TemperanceWarning, match=f"fewer than about {method.steady_from} samples .* got 20"):
        method().fit(logits[:20], labels[:20])


@each
@few
def test_many_classes_and_fewer_samples(method: Method) -> None:
    logits, labels = data(40, 300)
    quick: dict[str, Any] = {"sweeps": 1, "off_diagonal": 1e6, "intercept": 1e6}  # the shortest way
    found = method(**{name: value for name, value in quick.items() if name in defaults_of(method)})
    assert is_probability(found.fit(logits, labels).predict_proba(logits))


@each
def test_two_classes(method: Method) -> None:
    logits, labels = data(200, 2)
    assert is_probability(method().fit(logits, labels).predict_proba(logits))


@each
def test_log_probabilities_are_logits_too(method: Method) -> None:
    logits, labels = data()
    log_probs = logits.log_softmax(1)
    assert is_probability(method().fit(log_probs, labels).predict_proba(log_probs))


@each
@few
def test_equal_logits_and_separable_data(method: Method) -> None:
    flat = torch.zeros(60, 3, dtype=torch.float64)
    labels = torch.arange(60) % 3
    assert is_probability(method().fit(flat, labels).predict_proba(flat))
    separable = torch.nn.functional.one_hot(labels, 3).double() * 5 - 1
    assert is_probability(method().fit(separable, labels).predict_proba(separable))
