"""Scores of features: slow references from their formulas, what they are invariant to, wrong input."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from temperance.errors import InputError
from temperance.metrics.detection import auroc
from temperance.metrics.familiarity import FEATURE_SCORES, Reference, knn, mahalanobis, vim

N, D, K = 120, 6, 3
Array = npt.NDArray[np.float64]


def numbers(seed: int, n: int = N, far: float = 0.0) -> tuple[Array, npt.NDArray[np.int64]]:
    """Features around a centre of their class, or far from all of them."""
    generator = np.random.default_rng(seed)
    labels = np.arange(n) % K
    return generator.normal(size=(n, D)) + 4 * np.eye(K, D)[labels] - far, labels


TRAIN, LABELS = numbers(0)
WEIGHT, BIAS = np.random.default_rng(1).normal(size=(K, D)), np.array([0.3, -0.2, 0.1])
NEW = numbers(2, n=20)[0]


def reference() -> Reference:
    return Reference.of(TRAIN, LABELS, WEIGHT, BIAS)


def test_mahalanobis_is_its_formula() -> None:
    means = np.stack([TRAIN[c == LABELS].mean(0) for c in range(K)])
    within = TRAIN - means[LABELS]
    inverse = np.linalg.inv(within.T @ within / N)
    expected = [-min((x - mean) @ inverse @ (x - mean) for mean in means) for x in NEW]
    assert mahalanobis(reference())(torch.from_numpy(NEW)).numpy() == pytest.approx(np.array(expected), rel=1e-9)


def test_mahalanobis_does_not_depend_on_the_units_of_features() -> None:
    scale = np.array([1e-3, 1.0, 1e3, 5.0, 0.1, 7.0])
    plain = mahalanobis(reference())(torch.from_numpy(NEW))
    scaled = mahalanobis(Reference.of(TRAIN * scale, LABELS))(torch.from_numpy(NEW * scale))
    assert scaled.numpy() == pytest.approx(plain.numpy(), rel=1e-6)


def test_mahalanobis_leaves_out_what_does_not_vary() -> None:
    padded = Reference.of(np.c_[TRAIN, np.zeros(N)], LABELS)
    found = mahalanobis(padded)(torch.from_numpy(np.c_[NEW, np.ones(20)]))
    assert found.numpy() == pytest.approx(mahalanobis(reference())(torch.from_numpy(NEW)).numpy(), rel=1e-9)


@pytest.mark.parametrize("neighbours", [1, 7, 1000])
def test_knn_is_the_distance_of_directions(neighbours: int) -> None:
    known, new = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (TRAIN, NEW))
    expected = [-np.sort(np.linalg.norm(known - x, axis=1))[min(neighbours, N) - 1] for x in new]
    found = knn(reference(), neighbours=neighbours)
    assert found(torch.from_numpy(NEW)).numpy() == pytest.approx(np.array(expected), rel=1e-9)
    assert found(torch.from_numpy(50 * NEW)).numpy() == pytest.approx(np.array(expected), rel=1e-9)


@pytest.mark.parametrize("dimensions", [None, 2, D])
def test_vim_is_its_formula(dimensions: int | None) -> None:
    size = dimensions or D // 2
    origin = -np.linalg.pinv(WEIGHT) @ BIAS
    centred = TRAIN - origin
    values, vectors = np.linalg.eig(centred.T @ centred)
    space = vectors[:, np.argsort(-values)[:size]]

    def outside(rows: Array) -> Array:
        moved = rows - origin
        return np.asarray(np.linalg.norm(moved - moved @ space @ space.T, axis=1))

    def logits(rows: Array) -> Array:
        return np.asarray(rows @ WEIGHT.T + BIAS)

    alpha = logits(TRAIN).max(1).sum() / outside(TRAIN).sum() if size < D else 0.0
    expected = np.log(np.exp(logits(NEW)).sum(1)) - alpha * outside(NEW)
    assert vim(reference(), dimensions=dimensions)(torch.from_numpy(NEW)).numpy() == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("name", ["mahalanobis", "knn"])
def test_distances_tell_far_features_apart(name: str) -> None:
    score = FEATURE_SCORES[name].fit(reference())
    near, far = (score(torch.from_numpy(numbers(5, far=far)[0])) for far in (0.0, 6.0))
    assert auroc(near, far) > 0.99


def test_wrong_input_is_refused() -> None:
    with pytest.raises(InputError, match="vim needs the weight and bias"):
        vim(Reference.of(TRAIN, LABELS))
    with pytest.raises(InputError, match="labels must have shape \\(120,\\), as many as the features"):
        Reference.of(TRAIN, LABELS[:5])
    with pytest.raises(InputError, match="weight must be \\(k, 6\\)"):
        Reference.of(TRAIN, LABELS, WEIGHT[:, :4], BIAS)
    with pytest.raises(InputError, match=r"features must have shape \(n, d\), one row per sample"):
        Reference.of(TRAIN[0], LABELS)
    broken = TRAIN.copy()
    broken[7, 2] = np.nan
    with pytest.raises(InputError, match="features must be finite; row 7, column 2 is nan"):
        Reference.of(broken, LABELS)
