"""Retraining from Python: what changed, on which part, and whether the new classifier should be used."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from temperance.errors import InputError
from temperance.heads import Features, make_head, retrain
from temperance.metrics import accuracy, nll


@pytest.fixture(scope="module")
def features() -> Features:
    """Four noisy classes in ten dimensions, whose network's classifier is five times as sure as it should be."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(4, 10, generator=generator)
    labels = torch.arange(1200) % 4
    rows = means[labels] + 1.2 * torch.randn(1200, 10, generator=generator)
    parts = {"train": slice(400), "val": slice(400, 800), "test": slice(800, 1200)}
    given: dict[str, Any] = {f"{name}_features": rows[part] for name, part in parts.items()}
    given |= {f"{name}_labels": labels[part] for name, part in parts.items()}
    sure = 5 / 1.2**2
    return Features.of(**given, classifier_weight=sure * means, classifier_bias=-sure * means.square().sum(1) / 2)


def test_a_better_head(features: Features) -> None:
    found = retrain(features, "mac-cal:preset=kept-accuracy", bootstrap=100)
    assert not found.worse and found.warning == ""
    assert found.verdict.startswith("Better in") and "NLL" in found.verdict.split(".")[0]
    assert found.head.seconds > 0


def test_a_worse_head_is_known_by_the_validation_part(features: Features) -> None:
    head = make_head("linear", epochs=0)
    found = retrain(features, head, bootstrap=0)
    assert found.worse and found.verdict.endswith(found.warning)
    assert found.warning.startswith("On the 400 validation samples linear is worse than the network's classifier: acc")
    assert features.val is not None and features.classifier is not None
    old = F.linear(features.val.features, *features.classifier)
    for metric in (accuracy, nll):
        before, after = (metric(z, features.val.labels, from_logits=True) for z in (old, head(features.val.features)))
        assert found.val_differences[metric.name].value == pytest.approx(after - before, abs=1e-6)
    assert f"NLL from {nll(old, features.val.labels, from_logits=True):.4f} to" in found.warning


def test_the_test_part_does_not_decide(features: Features) -> None:
    """With the labels of the test part turned round, everything is worse there, and the head is used all the same."""
    assert features.test is not None
    turned = replace(features.test, labels=(features.test.labels + 1) % 4)
    found = retrain(replace(features, test=turned), "linear:epochs=20", bootstrap=100)
    as_it_is = retrain(features, "linear:epochs=20", bootstrap=100)
    assert found.worse == as_it_is.worse and found.val_differences == as_it_is.val_differences


def test_few_test_samples_are_no_sign_that_nothing_changed(features: Features) -> None:
    assert features.test is not None
    few = replace(features.test, features=features.test.features[:6], labels=features.test.labels[:6])
    found = retrain(replace(features, test=few), "linear:epochs=1", bootstrap=100)
    assert found.verdict.startswith(
        "No verdict without at least 20 right and 20 wrong predictions, before or after. With"
    )


def test_all_three_parts_are_needed(features: Features) -> None:
    with pytest.raises(InputError, match="need a val and a test part"):
        retrain(replace(features, val=None), "linear")
