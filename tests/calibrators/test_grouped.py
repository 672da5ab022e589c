"""Corrections by group: what they learn, what they leave alone, and which groups they need in use."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

import temperance
from temperance.calibrators import Grouped, Temperature, load_calibrator, make_calibrator
from temperance.calibrators._fit.spread import Partition, Spread, spreads_between
from temperance.calibrators.grouped import _corrections
from temperance.errors import InputError, TemperanceWarning
from temperance.predictions import Predictions

K = 4


def drawn(n: int, slopes: Tensor, shifts: Tensor, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels and groups, where labels follow softmax((1 + slope) log q + shift) of each sample's group."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, K, generator=generator, dtype=torch.float64)
    groups = torch.arange(n) % len(slopes)
    probs = (logits.log_softmax(1) * (1 + slopes[groups][:, None]) + shifts[groups]).softmax(1)
    return logits, torch.multinomial(probs, 1, generator=generator).squeeze(1), groups


def alike(n_groups: int) -> tuple[Tensor, Tensor]:
    return torch.zeros(n_groups, dtype=torch.float64), torch.zeros(n_groups, K, dtype=torch.float64)


def different(n_groups: int, of_slopes: float, of_shifts: float, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(n_groups, K + 1, generator=generator, dtype=torch.float64)
    return of_slopes * normal[:, 0], of_shifts * (normal[:, 1:] - normal[:, 1:].mean(1, keepdim=True))


def nll(probs: Tensor, labels: Tensor) -> float:
    return float(-probs.gather(1, labels[:, None]).log().mean())


@pytest.mark.parametrize(("of_slopes", "of_shifts"), [(0.1, 0.0), (0.0, 0.2), (0.1, 0.15)])
def test_the_spread_between_groups_is_found(of_slopes: float, of_shifts: float) -> None:
    """Where it is small: the derivatives that it is computed from are those of groups that do not differ."""
    truth = different(200, of_slopes, of_shifts)
    logits, labels, groups = drawn(100_000, *truth)
    found = spreads_between(logits.log_softmax(1), labels, torch.ones(len(labels)).double(), [Partition(groups, 200)])[
        0
    ]
    assert math.sqrt(found.slopes) == pytest.approx(float(truth[0].square().mean().sqrt()), abs=0.02)
    assert math.sqrt(found.shifts) == pytest.approx(float(truth[1].square().mean().sqrt()), abs=0.02)


def test_groups_that_do_not_differ_are_seldom_found_to() -> None:
    found_by_chance = 0
    for seed in range(40):
        logits, labels, groups = drawn(1_000, *alike(20), seed=seed)
        found = spreads_between(
            logits.log_softmax(1), labels, torch.ones(len(labels)).double(), [Partition(groups, 20)]
        )[0]
        found_by_chance += (found.slopes > 0) + (found.shifts > 0)
    assert found_by_chance <= 10  # of 80, each with a probability of 1 to 9 %


@pytest.mark.parametrize(("n_groups", "size", "k", "sure"), [(500, 3, 2, 5.0), (50, 50, 10, 8.0)])
def test_tiny_groups_and_rare_mistakes_are_seldom_found_to_differ(
    n_groups: int, size: int, k: int, sure: float
) -> None:
    generator, n = torch.Generator().manual_seed(0), n_groups * size
    groups, ones = torch.arange(n) % n_groups, torch.ones(n, dtype=torch.float64)
    found_by_chance = torch.zeros(2)
    for _ in range(60):
        logits = torch.zeros(n, k, dtype=torch.float64)
        likely = torch.randint(k, (n,), generator=generator)
        logits[torch.arange(n), likely] = sure + 1.5 * torch.randn(n, generator=generator, dtype=torch.float64)
        labels = torch.multinomial(logits.softmax(1), 1, generator=generator).squeeze(1)
        found = spreads_between(logits.log_softmax(1), labels, ones, [Partition(groups, n_groups)])[0]
        found_by_chance += torch.tensor(found) > 0
    assert int(found_by_chance.max()) <= 7  # of 60 for each of the two


def test_it_equals_a_slow_minimisation() -> None:
    logits, labels, groups = drawn(400, *different(5, 0.2, 0.3))
    log_probs, spread = logits.log_softmax(1), Spread(0.04, 0.09)
    slopes, shifts = _corrections(log_probs, labels, None, [Partition(groups, 5)], [spread])
    b, a = torch.zeros(5, dtype=torch.float64), torch.zeros(5, K, dtype=torch.float64)
    for _ in range(3_000):
        with torch.enable_grad():
            b, a = b.requires_grad_(), a.requires_grad_()
            scores = (log_probs * (1 + b[groups])[:, None] + a[groups]).log_softmax(1)
            loss = -scores.gather(1, labels[:, None]).sum()
            loss = loss + b.square().sum() / (2 * spread.slopes) + a.square().sum() / (2 * spread.shifts)
            step_b, step_a = torch.autograd.grad(loss, (b, a))
        b, a = (b - 2e-3 * step_b).detach(), (a - 2e-3 * step_a).detach()
    torch.testing.assert_close(slopes, b, atol=2e-3, rtol=0)
    torch.testing.assert_close(shifts, a, atol=2e-3, rtol=0)


def test_groups_that_differ_gain_and_small_ones_more_than_alone() -> None:
    truth = different(40, 0.4, 0.5)
    logits, labels, groups = drawn(4_000, *truth)
    new, answers, of_new = drawn(20_000, *truth, seed=7)
    grouped = Grouped(base="temperature").fit(logits, labels, groups=groups)
    together = nll(grouped.predict_proba(new, groups=of_new), answers)
    plain = nll(Temperature().fit(logits, labels).predict_proba(new), answers)
    alone = torch.empty_like(new)
    for g in range(40):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TemperanceWarning)  # a group alone has few samples
            fitted = make_calibrator("vector").fit(logits[groups == g], labels[groups == g])
        alone[of_new == g] = fitted.predict_proba(new[of_new == g])
    best = nll((new.log_softmax(1) * (1 + truth[0][of_new])[:, None] + truth[1][of_new]).softmax(1), answers)
    assert best < together < min(plain, nll(alone, answers))
    assert (together - best) < 0.4 * (plain - best)
    assert "differ by about" in grouped.info["verdict"]


def test_groups_that_do_not_differ_lose_next_to_nothing() -> None:
    losses = []
    for seed in range(10):
        logits, labels, groups = drawn(1_000, *alike(30), seed=seed)
        new, answers, of_new = drawn(20_000, *alike(30), seed=100 + seed)
        grouped = Grouped(base="temperature").fit(logits, labels, groups=groups)
        plain = Temperature().fit(logits, labels)
        losses.append(nll(grouped.predict_proba(new, groups=of_new), answers) - nll(plain.predict_proba(new), answers))
    assert max(losses) < 0.01 and sum(losses) / len(losses) < 0.002


def test_no_difference_is_said_so() -> None:
    for seed in range(50):
        logits, labels, groups = drawn(500, *alike(5), seed=seed)
        fitted = Grouped(base="temperature").fit(logits, labels, groups=groups)
        if not bool(fitted.slopes.any() or fitted.shifts.any()):
            assert "5 groups do not differ by more than chance" in fitted.info["verdict"]
            return
    raise AssertionError("in none of 50 draws were groups alike")


def test_unknown_groups_and_samples_without_groups_get_the_base() -> None:
    logits, labels, groups = drawn(600, *different(6, 0.4, 0.5))
    names = np.array([f"group {g}" for g in groups.tolist()])
    fitted = Grouped(base="temperature").fit(logits, labels, groups=names)
    base = Temperature().fit(logits, labels).predict_proba(logits)
    torch.testing.assert_close(fitted.predict_proba(logits, groups=np.full(600, "new")), base)
    torch.testing.assert_close(Grouped(base="temperature").fit(logits, labels).predict_proba(logits), base)
    assert float((fitted.predict_proba(logits, groups=names) - base).abs().max()) > 0.05


def test_the_order_of_samples_and_the_names_of_groups_do_not_matter() -> None:
    logits, labels, groups = drawn(500, *different(7, 0.3, 0.4))
    order = torch.randperm(500, generator=torch.Generator().manual_seed(3))
    fitted = Grouped(base="temperature").fit(logits, labels, groups=groups)
    again = Grouped(base="temperature").fit(logits[order], labels[order], groups=100 - groups[order])
    torch.testing.assert_close(
        fitted.predict_proba(logits, groups=groups), again.predict_proba(logits, groups=100 - groups), atol=1e-5, rtol=0
    )


def test_whole_weights_are_repeated_samples() -> None:
    logits, labels, groups = drawn(300, *different(5, 0.3, 0.4))
    weights = torch.arange(300) % 3
    fitted = Grouped(base="temperature").fit(logits, labels, groups=groups, weights=weights)
    rows = torch.arange(300).repeat_interleave(weights)
    again = Grouped(base="temperature").fit(logits[rows], labels[rows], groups=groups[rows])
    torch.testing.assert_close(fitted.slopes, again.slopes, atol=1e-5, rtol=0)
    torch.testing.assert_close(fitted.shifts, again.shifts, atol=1e-5, rtol=0)


def test_a_group_whose_samples_are_all_ignored_is_not_known() -> None:
    logits, labels, groups = drawn(300, *different(3, 0.3, 0.4))
    labels = labels.where(groups != 2, -1)
    fitted = Grouped(base="temperature").fit(logits, labels, groups=groups, ignore_index=-1)
    assert fitted.group_names == ("0", "1")
    assert fitted.predict_proba(logits, groups=groups).shape == (300, K)


@pytest.mark.parametrize("base", ["temperature", "auto", "structured-vector"])
def test_it_is_saved_with_its_groups(base: str, tmp_path: object) -> None:
    logits, labels, groups = drawn(400, *different(6, 0.3, 0.4))
    fitted = Grouped(base=base).fit(logits, labels, groups=groups)
    path = f"{tmp_path}/cal.safetensors"
    fitted.save(path)
    loaded = load_calibrator(path)
    assert loaded.group_names == fitted.group_names == tuple("012345")
    assert torch.equal(loaded.predict_proba(logits, groups=groups), fitted.predict_proba(logits, groups=groups))


def test_pixels_have_the_group_of_their_image() -> None:
    logits, labels, _ = drawn(400, *different(4, 0.3, 0.4))
    images, of_image = logits.reshape(100, 2, 2, K).movedim(-1, 1), np.arange(100) % 4
    dense = Grouped(base="temperature").fit(images, labels.reshape(100, 2, 2), groups=of_image)
    flat = Grouped(base="temperature").fit(logits, labels, groups=of_image.repeat(4))
    found = dense.predict_proba(images, groups=of_image).movedim(1, -1).reshape(-1, K)
    torch.testing.assert_close(found, flat.predict_proba(logits, groups=of_image.repeat(4)))


def test_a_prior_is_on_top() -> None:
    logits, labels, groups = drawn(600, *different(4, 0.3, 0.4))
    fitted = Grouped(base="temperature").fit(logits, labels, groups=groups)
    before = fitted.predict_proba(logits, groups=groups)
    after = fitted.set_prior([8, 1, 1, 1]).predict_proba(logits, groups=groups)
    assert bool((after[:, 0] > before[:, 0]).all())


def test_wrong_input_is_refused() -> None:
    logits, labels, groups = drawn(100, *alike(4))
    fitted = Grouped(base="temperature").fit(logits, labels, groups=groups)
    with pytest.raises(InputError, match="fitted on 4 groups of samples: give the group of each sample"):
        fitted.predict_proba(logits)
    with pytest.raises(InputError, match=r"groups must have shape \(100,\), one for each sample; got \(99,\)"):
        fitted.predict_proba(logits, groups=groups[:99])
    with pytest.raises(InputError, match="groups must be text or integers; got float64"):
        Grouped().fit(logits, labels, groups=groups.double())
    with pytest.raises(InputError, match=r"temperature treats all groups of samples alike.*Grouped\(base='temperature"):
        Temperature().fit(logits, labels, groups=groups)
    with pytest.raises(InputError, match="must be a calibrator that all groups share; got grouped"):
        make_calibrator("grouped", base="grouped")


def test_jobs_use_the_groups_of_predictions() -> None:
    logits, labels, groups = drawn(3_000, *different(10, 0.5, 0.6))
    data = Predictions.of(logits, labels, from_logits=True, groups=[f"site {g}" for g in groups.tolist()])
    found = temperance.compare(data, methods=["temperature", "grouped:base=temperature"], by_group=True)
    assert found.recommended.label == "grouped:base=temperature"
    calibrator = found.calibrator(refit=True)
    assert len(calibrator.group_names) == 10
    calibrated = temperance.apply(calibrator, data)
    expected = calibrator.predict_proba(logits, groups=data.groups)
    torch.testing.assert_close(calibrated.scores, expected)
    one = temperance.evaluate(data, calibrator=calibrator, by_group=True, bootstrap=0)
    other = temperance.evaluate(calibrated, by_group=True, bootstrap=0)
    assert [row.value for row in one.rows] == pytest.approx([row.value for row in other.rows])
    bare = Predictions.of(logits, labels, from_logits=True)
    with pytest.raises(InputError, match="corrects each group of samples, and the predictions have no groups"):
        temperance.apply(calibrator, bare)
    with pytest.raises(InputError, match="the predictions have no groups"):
        temperance.compare(bare, methods=["grouped"])
    renamed = Predictions.of(logits, from_logits=True, groups=["elsewhere"] * 3_000)
    with pytest.warns(TemperanceWarning, match=r"not fitted on 1 group of these \(elsewhere\): 3,000 samples get"):
        temperance.apply(calibrator, renamed)


def test_compare_leaves_it_out_unless_asked() -> None:
    logits, labels, groups = drawn(200, *alike(4))
    data = Predictions.of(logits, labels, from_logits=True, groups=groups.numpy())
    for by_group in (False, True):
        found = temperance.compare(data, by_group=by_group, bootstrap=20)
        assert ("grouped" in {row.method for row in found.rows}) == by_group


def test_corrections_that_groups_share_are_no_parameters() -> None:
    logits, labels, groups = drawn(500, *alike(50))
    found = Grouped(base="temperature").fit(logits, labels, groups=groups)
    assert found.n_parameters == 1
    differ = Grouped(base="temperature").fit(*drawn(2000, *different(5, 0.6, 0.0))[:2], groups=torch.arange(2000) % 5)
    assert differ.n_parameters in (1 + 5, 1 + 5 + 5 * K)


def test_it_is_refused_where_groups_cannot_be_given() -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    from temperance.interop.sklearn import CalibratedClassifier

    with pytest.raises(InputError, match="members of auto must be calibrators that all groups share; got grouped"):
        make_calibrator("auto", members=["grouped", "vector"])
    classifier = CalibratedClassifier(sklearn.LogisticRegression(), method="grouped")
    with pytest.raises(InputError, match="predict_proba takes no groups"):
        classifier.fit(np.arange(20.0).reshape(10, 2), [0, 1] * 5)


def test_one_group_and_a_group_without_a_name_read_well() -> None:
    logits, labels, groups = drawn(100, *alike(1))
    assert (
        Grouped(base="temperature").fit(logits, labels, groups=groups).info["verdict"].startswith("There is one group")
    )
    probs = logits.softmax(1)
    fitted = temperance.jobs.application.fit(
        Grouped(base="temperature"), Predictions.of(probs, labels, groups=["a", "b"] * 50)
    )
    with pytest.warns(TemperanceWarning, match=r"not fitted on 1 group of these \(\(no name\)\): 50 samples get"):
        temperance.apply(fitted, Predictions.of(probs, labels, groups=["a", ""] * 50))


def test_golden_numbers_of_one_column() -> None:
    """As they were before there could be several; the samples are drawn without random numbers."""
    i = torch.arange(600, dtype=torch.float64)
    logits = torch.stack([2 * torch.sin(1.3 * i), 2 * torch.cos(0.7 * i), torch.sin(0.31 * i)], 1)
    groups = torch.arange(600) % 3
    slopes = torch.tensor([-0.6, 0.0, 0.9], dtype=torch.float64)[groups]
    shifts = torch.tensor([[0.9, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.9, 0.0]], dtype=torch.float64)[groups]
    truth = (logits * (1 + slopes[:, None]) + shifts).softmax(1)
    labels = (truth.cumsum(1) < (i * 0.6180339887498949 % 1)[:, None]).sum(1).clamp_max(2)
    fitted = Grouped(base="temperature").fit(logits, labels, groups=groups)
    assert [fitted.info[f"spread_of_{name}"] for name in ("slopes", "shifts")] == pytest.approx(
        [0.427629154, 0.477589978]
    )
    assert fitted.slopes.tolist() == pytest.approx([-0.350171523, 0.114291588, 0.674365635], abs=1e-6)
    assert fitted.shifts[0].tolist() == pytest.approx([0.698564399, -0.499754335, -0.198810064], abs=1e-6)
