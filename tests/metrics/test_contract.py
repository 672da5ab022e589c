"""What every registered metric must do, read from the registry: none is exempt by name."""

import gc
import math
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch

from conftest import random_predictions
from temperance import metrics
from temperance.errors import InputError
from temperance.jobs.evaluation import evaluate
from temperance.metrics import METRICS, Metric, stats
from temperance.metrics.batch import batches
from temperance.metrics.bins import Bins, SparseBins
from temperance.metrics.statistic import Additive, RankedSamples, Statistic
from temperance.metrics.stream import Stream
from temperance.predictions import Predictions

each_metric = pytest.mark.parametrize("metric", list(METRICS), ids=METRICS.names)


def those(claim: Callable[[Metric], bool]) -> pytest.MarkDecorator:
    """Every metric for which something holds, and there must be some."""
    found = [metric for metric in METRICS if claim(metric)]
    assert found
    return pytest.mark.parametrize("metric", found, ids=[metric.name for metric in found])


def kind(metric: Metric) -> Statistic:
    """The statistic of any two samples."""
    return metric.stats([[0.9, 0.1], [0.3, 0.7]], [0, 1])


def predictions(n: int = 300, k: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    logits, labels = random_predictions(n, k, seed)
    return logits.softmax(1), labels


@each_metric
def test_statistics_add(metric: Metric) -> None:
    probs, labels = predictions()
    whole = metric(probs, labels)
    for cut in (1, 137, 299):
        parts = metric.stats(probs[:cut], labels[:cut]) + metric.stats(probs[cut:], labels[cut:])
        assert metric.value(parts) == pytest.approx(whole, abs=1e-12)


@those(lambda metric: isinstance(kind(metric), Additive))
@pytest.mark.parametrize("from_logits", [True, False])
def test_statistics_of_parts(metric: Metric, from_logits: bool) -> None:
    logits, labels = random_predictions(300, 4)
    scores = logits if from_logits else logits.softmax(1)
    part = torch.arange(300) % 7
    (batch,) = batches(scores, labels, from_logits=from_logits)
    batch.deal(part, 7)
    found = metric.of_batch(batch)
    assert isinstance(found, Additive)
    assert metric.value(found.whole()) == pytest.approx(metric(scores, labels, from_logits=from_logits), abs=1e-12)
    weights = torch.eye(7, dtype=torch.float64)
    weights[0, 3] = 2  # the first part once and the fourth twice
    drawn = [metric.value(each) for each in found.resampled(weights)]
    chosen = torch.cat([(part == i).nonzero().squeeze(1) for i in (0, 3, 3)])
    rows = [chosen, *(part == i for i in range(1, 7))]
    alone = [metric(scores[index], labels[index], from_logits=from_logits) for index in rows]
    assert drawn == pytest.approx(alone, abs=1e-12, nan_ok=True)


@those(lambda metric: isinstance(kind(metric), Bins))
def test_sparse_bins_give_the_same_number(metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = predictions()
    whole = metric(probs, labels)
    test_statistics_of_parts(metric, from_logits=False)
    monkeypatch.setattr(stats, "DENSE_BINS", 0)
    sparse = metric.stats(probs[:100], labels[:100]) + metric.stats(probs[100:], labels[100:])
    assert isinstance(sparse, SparseBins) and metric.value(sparse) == pytest.approx(whole, abs=1e-12)
    test_statistics_of_parts(metric, from_logits=True)
    test_statistics_of_parts(metric, from_logits=False)


@those(lambda metric: isinstance(kind(metric), RankedSamples))
def test_ordered_rows_are_freed_without_a_look_for_garbage(metric: Metric) -> None:
    found = metric.stats(*predictions())
    assert isinstance(found, RankedSamples)
    drawn = found.redrawn(300, torch.Generator().manual_seed(0), paired=False)
    metric.value(drawn)
    held = [weakref.ref(each) for each in (found.ordered, drawn, drawn.ordered)]
    gc.disable()
    try:
        del found, drawn
        assert [each() for each in held] == [None] * 3
    finally:
        gc.enable()


@each_metric
def test_stream_gives_the_value_of_the_whole(metric: Metric) -> None:
    probs, labels = predictions()
    stream = Stream(metric)
    for start in range(0, len(labels), 77):
        stream.update(probs[start : start + 77], labels[start : start + 77])
    assert stream.value == pytest.approx(metric(probs, labels), abs=1e-12)
    assert stream.grows is not isinstance(stream.stats, Additive)


@those(lambda metric: not metric.of_classes and not metric.proper)
def test_answers_need_no_more_than_confidence(metric: Metric) -> None:
    probs, labels = predictions()
    confidence, correct = probs.amax(1), (probs.argmax(1) == labels).long()
    answers = batches(torch.stack([1 - confidence, confidence], 1), correct, one_score=True)
    assert bool((confidence < 0.5).any())  # an answer that is more likely wrong than right is still the prediction
    assert metric.value(metric.stats_of(answers)) == pytest.approx(metric(probs, labels), abs=1e-12)


@those(lambda metric: metric.of_classes)
def test_what_needs_classes_is_refused_for_answers(metric: Metric) -> None:
    answers = Predictions.of([0.9, 0.3, 0.8], [1, 0, 1], answers=True)
    with pytest.raises(InputError, match=f"{metric.name} needs the probabilities of classes"):
        evaluate(answers, metrics=[metric.name], bootstrap=0)
    assert metric.name not in [row.metric for row in evaluate(answers, metrics="all", bootstrap=0).rows]


@each_metric
def test_value_lies_in_its_range(metric: Metric) -> None:
    low, high = metric.range
    sizes = (2, 3, 10, 300) if metric.quadratic else (1, 2, 3, 10, 300)  # a kernel estimate needs another sample
    for seed, n in enumerate(sizes):
        value = metric(*predictions(n, 3, seed))
        assert low <= value <= high or math.isnan(value)


@those(lambda metric: metric.perfect is not None)
def test_perfect_predictions(metric: Metric) -> None:
    labels = torch.arange(60) % 3
    probs = torch.nn.functional.one_hot(labels, 3).double()
    assert metric(probs, labels) == pytest.approx(metric.perfect, abs=1e-9)


@each_metric
def test_order_of_samples_does_not_matter(metric: Metric) -> None:
    probs, labels = predictions()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    assert metric(probs[order], labels[order]) == pytest.approx(metric(probs, labels), abs=1e-9)


@each_metric
def test_kinds_of_input_agree(metric: Metric) -> None:
    logits, labels = random_predictions(200, 4)
    probs = logits.softmax(1)
    value = metric(probs, labels)
    assert metric(probs.numpy(), labels.numpy()) == value
    assert metric(probs.tolist(), labels.tolist()) == value
    assert metric(probs, labels.to(torch.uint8)) == value
    assert metric(logits, labels, from_logits=True) == pytest.approx(value, abs=1e-9)
    assert metric(probs.float(), labels) == pytest.approx(value, abs=1e-3)


@each_metric
def test_dense_predictions_are_rows(metric: Metric) -> None:
    probs, labels = predictions(2 * 3 * 5)
    dense = probs.reshape(2, 3, 5, 4).movedim(-1, 1)
    truth = labels.reshape(2, 3, 5)
    assert metric(dense, truth) == pytest.approx(metric(probs, labels), abs=1e-12)
    some = truth.clone()
    some[0, 0] = 255
    kept = some.reshape(-1) != 255
    assert metric(dense, some, ignore_index=255) == pytest.approx(metric(probs[kept], labels[kept]), abs=1e-12)


@those(lambda metric: metric.proper)
def test_proper_scores_are_least_for_the_truth(metric: Metric) -> None:
    truth = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    labels = torch.tensor([0] * 6 + [1] * 3 + [2])

    def expected(forecast: torch.Tensor) -> float:
        return metric(forecast.expand(10, 3), labels)

    best = expected(truth)
    for other in ([0.5, 0.4, 0.1], [0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3], [0.6, 0.25, 0.15]):
        assert expected(torch.tensor(other, dtype=torch.float64)) > best + 1e-6


@each_metric
def test_unknown_setting_is_refused_with_a_suggestion(metric: Metric) -> None:
    probs, labels = predictions(10)
    with pytest.raises(InputError, match="setting of"):
        metric(probs, labels, no_such_setting=1)
    with pytest.raises(InputError, match="setting of"):
        Stream(metric, no_such_setting=1)


@each_metric
def test_metric_is_documented_and_public(metric: Metric) -> None:
    assert metric.summary and len(metric.summary) < 120
    assert getattr(metrics, metric.__name__) is metric
    assert metric.__name__ in metrics.__all__


@each_metric
def test_absent_classes_and_certain_predictions_are_finite(metric: Metric) -> None:
    labels = torch.tensor([0, 0, 1, 1, 0, 1])
    probs = torch.tensor([[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0.25] * 4, [0, 0, 0, 1]])
    assert math.isfinite(metric(probs, labels))


@each_metric
def test_saturated_logits_are_finite(metric: Metric) -> None:
    logits, labels = random_predictions(50, 4)
    logits = torch.where(logits > 0, 1e4, -1e4) + logits
    assert math.isfinite(metric(logits, labels, from_logits=True))


def test_defaults_are_documented_in_the_signature() -> None:
    assert "n_bins=15" in repr(metrics.ece)


def test_numpy_scalars_survive() -> None:
    probs, labels = predictions(20)
    assert metrics.accuracy(probs.numpy().astype(np.float16), labels.numpy().astype(np.int8)) <= 1
