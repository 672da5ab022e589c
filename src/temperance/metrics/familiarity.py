"""Feature scores: how familiar a sample is, from where its features lie relative to the training data.

Higher is more familiar, as with confidence scores. Each is fitted to a `Reference` and registered in `FEATURE_SCORES`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from temperance.arrays import ArrayLike, shape_of, to_tensor
from temperance.errors import InputError
from temperance.registry import Registry, first_line, plain_name
from temperance.settings import Count

ROWS = 2048  # rows whose distances to all others are in memory at a time
SINGULAR = 1e-10  # directions with less than this share of the largest variance are left out

Familiarity = Callable[[Tensor], Tensor]  # (n, d) features → (n,) scores


@dataclass(frozen=True)
class Reference:
    """A network's training features (n, d) and labels (n,), and its last layer, weight (k, d) and bias (k,)."""

    features: Tensor
    labels: Tensor
    classifier: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of(
        cls, features: ArrayLike, labels: ArrayLike, weight: ArrayLike | None = None, bias: ArrayLike | None = None
    ) -> "Reference":
        """From arrays of any kind, checked."""
        rows, truth = as_features(features), to_tensor(labels, "labels").long()
        if truth.shape != rows.shape[:1]:
            raise InputError(f"labels must have shape ({len(rows)},), as many as the features; got {shape_of(truth)}")
        if weight is None or bias is None:
            return cls(rows, truth)
        layer = to_tensor(weight, "weight").double(), to_tensor(bias, "bias").double()
        if layer[0].ndim != 2 or layer[0].shape[1] != rows.shape[1] or layer[1].shape != layer[0].shape[:1]:
            raise InputError(
                f"weight must be (k, {rows.shape[1]}) and bias (k,); got {shape_of(layer[0])} and {shape_of(layer[1])}"
            )
        return cls(rows, truth, layer)


@dataclass(frozen=True)
class FeatureScore:
    """A registered feature score: `fit` takes a `Reference` and returns a function from features to scores."""

    name: str
    summary: str
    fit: Callable[..., Familiarity]
    needs_classifier: bool


FEATURE_SCORES: Registry[FeatureScore] = Registry("score of features")


def as_features(
    values: ArrayLike, name: str = "features", *, d: int | None = None, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Checked features. (n, d)"""
    found = to_tensor(values, name)
    if found.ndim != 2 or 0 in found.shape:
        raise InputError(f"{name} must have shape (n, d), one row per sample; got {shape_of(found)}")
    if d is not None and found.shape[1] != d:
        raise InputError(f"{name} must have {d} columns, like those of the training data; got {found.shape[1]}")
    found = found.to(dtype)
    if not bool(torch.isfinite(found).all()):
        i, j = (int(at) for at in (~torch.isfinite(found)).nonzero()[0])
        raise InputError(f"{name} must be finite; row {i}, column {j} is {float(found[i, j])}")
    return found


def _registered(
    *, needs_classifier: bool = False
) -> Callable[[Callable[..., Familiarity]], Callable[..., Familiarity]]:
    def register(fit: Callable[..., Familiarity]) -> Callable[..., Familiarity]:
        name = plain_name(fit.__name__)
        FEATURE_SCORES.add(name, FeatureScore(name, first_line(fit.__doc__), fit, needs_classifier))
        return fit

    return register


@_registered()
def mahalanobis(reference: Reference) -> Familiarity:
    """Minus the squared Mahalanobis distance of the features to the nearest class mean.

    −min_c (x − μ_c)ᵀ Σ⁻¹ (x − μ_c), with one covariance Σ for all classes (Lee et al., 2018). Directions in which the
    training features do not vary within classes are left out.
    """
    present = torch.unique(reference.labels)
    means = torch.stack([reference.features[reference.labels == c].mean(0) for c in present])
    within = reference.features - means[torch.searchsorted(present, reference.labels)]
    spread = within.square().mean(0).sqrt()
    unit = torch.where(spread > 0, spread.reciprocal(), 0.0)  # so that the units of features do not matter
    variances, directions = torch.linalg.eigh((within * unit).T @ (within * unit) / len(within))
    kept = variances > SINGULAR * variances[-1]
    whiten = unit[:, None] * directions[:, kept] * variances[kept].rsqrt()
    centres = means @ whiten
    return lambda features: -_nearest(features @ whiten, centres, 1).square()


@_registered()
def knn(reference: Reference, *, neighbours: Count = 50) -> Familiarity:
    """Minus the distance of the normalised features to their k-th nearest neighbour in the training data.

    Features are divided by their norm (Sun et al., 2022). `neighbours` is k, at most the number of training samples.
    """
    known = torch.nn.functional.normalize(reference.features, dim=1)
    k = min(neighbours, len(known))
    return lambda features: -_nearest(torch.nn.functional.normalize(features, dim=1), known, k)


@_registered(needs_classifier=True)
def vim(reference: Reference, *, dimensions: Count | None = None) -> Familiarity:
    """Virtual-logit matching: the energy of the logits, minus the part of the features that training data do not span.

    ln Σ_j exp(z_j) − α ‖x⊥‖ (Wang et al., 2022). x⊥ is the part of x − o outside the first `dimensions` principal
    directions of the training features; o = −W⁺b is where the logits are closest to 0; α makes the mean of α ‖x⊥‖ over
    the training data equal that of the largest logit. By default there are 1000 dimensions for 2048 features or more,
    512 for 768 or more, and half as many as features for fewer.
    """
    if reference.classifier is None:
        raise InputError("vim needs the weight and bias of the network's last layer; got none")
    weight, bias = reference.classifier
    d = weight.shape[1]
    size = min(dimensions or (1000 if d >= 2048 else 512 if d >= 768 else max(1, d // 2)), d)
    origin = -torch.linalg.pinv(weight) @ bias
    centred = reference.features - origin
    residual_space = torch.linalg.eigh(centred.T @ centred / len(centred)).eigenvectors[:, : d - size]

    def outside(features: Tensor) -> Tensor:
        found: Tensor = torch.linalg.vector_norm((features - origin) @ residual_space, dim=1)
        return found

    def logits(features: Tensor) -> Tensor:
        return features @ weight.T + bias

    mean_outside = float(outside(reference.features).mean())
    alpha = float(logits(reference.features).amax(1).mean()) / mean_outside if mean_outside > 0 else 0.0
    return lambda features: logits(features).logsumexp(1) - alpha * outside(features)


def _nearest(rows: Tensor, others: Tensor, k: int) -> Tensor:
    """The distance of each row to its k-th nearest among the others. (n,)"""
    exact = "donot_use_mm_for_euclid_dist" if rows.shape[1] <= 64 else "use_mm_for_euclid_dist_if_necessary"
    found = (torch.cdist(part, others, compute_mode=exact).kthvalue(k, 1).values for part in torch.split(rows, ROWS))
    return torch.cat(list(found))
