"""What a parametric calibrator minimises.

An objective is a weighted sum over rows, Σ_i c_i · loss_i, so that it can be summed block by block; only a calibration
error needs all rows at once. Some choose their weights from how well each row or class is fitted so far; they do so in
`reweigh`, between steps, and the weights stand still while an optimiser looks at them.
"""

import math
import warnings
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import nll_loss

from temperance.registry import Registry, first_line, plain_name
from temperance.settings import Bounds, Count, CountOrZero, Fraction, HasSettings, NameOf, Positive


class Objective(HasSettings):
    """A differentiable function of log-probabilities and labels; one is made for each fit.

    `objective(log_probs, labels)` looks at the losses, renews the weights and gives the value: one step of a plain
    training loop. A solver that keeps the weights still or walks over blocks of rows takes the parts: `losses` of the
    rows of a block, their `weights`, and `reweigh` when it is time.
    """

    summary: ClassVar[str]

    # Linear in the log-probabilities, therefore convex in any parameters that the logits are linear in.
    convex: bool
    # `reweigh` has something to do.
    adapts: bool = False
    # How many samples each row stands for (n,); None where each is one.
    counts: Tensor | None = None
    # The weight of a row depends on its class alone, so that it is known without the other rows.
    weighs_classes: bool = True
    # A calibration error of all rows together, which they share evenly and blocks do not sum to. It is for maps that
    # keep the order of the classes.
    whole: ClassVar[bool]

    def __call__(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        k = log_probs.shape[1]
        losses = self.losses(log_probs, labels)
        self.reweigh(losses.detach(), labels, k)
        return (self.weights(labels, k).to(losses.dtype) * losses).sum()

    def target(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The score of the label, or the mean score under a softer target. (n,)"""
        return scores.gather(1, labels[:, None]).squeeze(1)

    def losses(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each row. (n,)"""
        return -self.target(log_probs, labels)

    def weights(self, labels: Tensor, k: int) -> Tensor:
        """How much each row counts, in float64. (n,)"""
        of_class = self.class_weights_of(torch.bincount(labels, self.counts, minlength=k))[labels]
        return of_class if self.counts is None else of_class * self.counts

    def n_samples(self, labels: Tensor) -> float:
        """How many samples rows with these labels stand for."""
        return float(len(labels)) if self.counts is None else float(self.counts.sum())

    def class_weights_of(self, counts: Tensor) -> Tensor:
        """How much a row of each class counts, if there are this many of each (k,). (k,)"""
        return torch.full(counts.shape, 1 / float(counts.sum()), dtype=torch.float64, device=counts.device)

    def reweigh(self, losses: Tensor, labels: Tensor, k: int) -> float:
        """Choose the weights anew from the losses (n,) reached so far; the largest relative change of a weight."""
        return 0.0

    def reweigh_classes(self, sums: Tensor, counts: Tensor) -> float:
        """As `reweigh`, from the summed losses of each class and its number of rows. (k,) each"""
        return 0.0

    @property
    def info(self) -> dict[str, Any]:
        """What it chose, for the record."""
        return {}


OBJECTIVES: Registry[type[Objective]] = Registry("objective")

Kind = TypeVar("Kind", bound=type[Objective])


def objective(*, convex: bool, whole: bool = False, name: str | None = None) -> Callable[[Kind], Kind]:
    """Register an objective with its claims.

    convex  it is linear in the log-probabilities while its weights stand
    whole   it is a calibration error of all rows together, no sum over rows
    """

    def register(cls: Kind) -> Kind:
        cls.name = name or plain_name(cls.__name__)
        cls.summary = first_line(cls.__doc__)
        cls.convex = convex
        cls.whole = whole
        OBJECTIVES.add(cls.name, cls)
        return cls

    return register


def make_objective(name: str, **settings: Any) -> Objective:
    """A fresh objective by its plain name, which may carry settings as on the command line.

    >>> make_objective("label-smoothing:smoothing=0.1").convex
    True
    """
    made: Objective = OBJECTIVES.make(name, **settings)
    return made


def counting(name: str, counts: Tensor | None) -> Objective:
    """A fresh objective by its plain name, whose rows stand for that many samples each (n,)."""
    made = make_objective(name)
    made.counts = counts
    return made


# A setting of whatever minimises one.
ObjectiveName = Annotated[str, NameOf("an objective", make_objective)]


# ------------------------------------------------------------------------------------------------------- fixed weights


@objective(convex=True)
class Nll(Objective):
    """Negative log-likelihood: mean −log p(label), the usual choice."""

    def __call__(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        return nll_loss(log_probs, labels) if self.counts is None else super().__call__(log_probs, labels)


@objective(convex=True)
class ClassBalancedNll(Objective):
    """Negative log-likelihood in which every class counts the same.

    The mean over the classes that occur of their mean −log p(label). It is what `class-scaled` would be without its
    scaling, and so the baseline that tells the two effects apart on unbalanced data.
    """

    def class_weights_of(self, counts: Tensor) -> Tensor:
        return 1 / (torch.where(counts > 0, counts, 1) * (counts > 0).sum()).double()


@objective(convex=True, name="label-smoothing")
class SmoothedNll(Objective):
    """Cross-entropy with a softened label: the target gives `smoothing` evenly to all classes.

    The target is (1 − ε) · one-hot + ε / k, torch's convention; those who spread theirs over the k − 1 wrong classes
    mean the same by ε (k − 1) / k. Its optimum is deliberately less sure than the data: as a way to fit a calibrator
    it over-softens.

    smoothing  ε, the share that the label gives away
    """

    def __init__(self, *, smoothing: Fraction = 0.05) -> None:
        self.smoothing = smoothing

    def target(self, scores: Tensor, labels: Tensor) -> Tensor:
        return (1 - self.smoothing) * super().target(scores, labels) + self.smoothing * scores.mean(1)


@objective(convex=False, name="brier")
class BrierScore(Objective):
    """Brier score: mean squared distance to the one-hot label, which bounds what one confident mistake can cost."""

    def losses(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        # Σ_j (p_j − 1[j = y])² = Σ_j p_j² − 2 p_y + 1.
        label_prob = self.target(log_probs, labels).exp()
        return (2 * log_probs).exp().sum(1) - 2 * label_prob + 1


# ------------------------------------------------------------------------------------------------------- chosen weights


@objective(convex=False, name="focal")
class FocalNll(Objective):
    """Focal loss: −(1 − p)^gamma · log p of the label, which lets well-fitted samples count less.

    `detach_weight=True` takes (1 − p)^gamma for a fixed weight in each step, as the SCTL authors' program does; then
    the objective is linear in log p between two looks at the weights. Its optimum is less sure than the data.

    gamma          how fast a sample's weight falls as its label becomes probable; 0 is cross-entropy
    detach_weight  take the weight for a constant in each step

    Lin et al., Focal loss for dense object detection, 2017; Mukhoti et al., Calibrating deep neural networks using
    focal loss, 2020.
    """

    def __init__(self, *, gamma: Annotated[float, Bounds(0, 100)] = 3.0, detach_weight: bool = False) -> None:
        self.gamma = gamma
        self.detach_weight = detach_weight
        self.convex = self.adapts = detach_weight
        self.weighs_classes = not detach_weight
        self._focus: Tensor | None = None

    def losses(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        losses = super().losses(log_probs, labels)
        return losses if self.adapts else self._focus_of(losses) * losses

    def weights(self, labels: Tensor, k: int) -> Tensor:
        even = super().weights(labels, k)
        return even if self._focus is None else even * self._focus

    def reweigh(self, losses: Tensor, labels: Tensor, k: int) -> float:
        if not self.adapts:
            return 0.0
        before, self._focus = self._focus, self._focus_of(losses.double())
        return _largest_change(before, self._focus)

    def _focus_of(self, losses: Tensor) -> Tensor:
        # 1 − p without cancellation where p is nearly 1; the floor keeps the slope of a power below 1 finite.
        return (-torch.expm1(-losses)).clamp_min(1e-30) ** self.gamma


@objective(convex=True)
class ClassScaled(Objective):
    """Class-wise loss scaling (SCTL): classes that fit badly count more, so that losses even out.

    Σ_j (1 + w_j) L_j over the classes that occur (eq. 8), with L_j the class's loss and
    w_j = β / (1 + exp(−L̄_j / α)) − β / 2 (eq. 5) of its normalised loss L̄. The weights are constants to the optimiser
    and are renewed by `reweigh`: the first time with α = 1 and β = 1.5; the second time α and β are chosen to make the
    predicted spread of the class losses small (eq. 6), and then they stay.

    normalise     "nd" (L − mean) / std, "mm" (L − min) / (max − min), "cm" (L − mean) / (max − min); no spread, no
                  scaling
    class_reduce  "mean" over a class's samples, as in the authors' program, which balances unequal classes too; "sum"
                  as printed in eq. 3
    ddof          of the std: 1 in the program, 0 in eq. 4
    step          how eq. 6 predicts the next losses: "paper" L0 − w (L1 − L0) as printed and programmed;
                  "first-order" L0 + (1 + w)(L1 − L0), which is what a step along the scaled loss does

    Jung et al., Scaling of class-wise training losses for post-hoc calibration, ICML 2023.
    """

    adapts = True

    # The box that the authors' program searches; α ends at ln(k) / 2.
    FIRST_ALPHA, FIRST_BETA = 1.0, 1.5
    LOW_ALPHA = 0.1
    BETA_RANGE = (1.5, 2.0)

    def __init__(
        self,
        *,
        normalise: Literal["nd", "mm", "cm"] = "nd",
        class_reduce: Literal["mean", "sum"] = "mean",
        ddof: CountOrZero = 1,
        step: Literal["paper", "first-order"] = "paper",
    ) -> None:
        self.normalise = normalise
        self.class_reduce = class_reduce
        self.ddof = ddof
        self.step = step
        self.alpha, self.beta = self.FIRST_ALPHA, self.FIRST_BETA
        self.class_weights = torch.empty(0, dtype=torch.float64)
        self._first_losses = self.class_weights
        self._looks = 0

    def __call__(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        k = log_probs.shape[1]
        losses = self._class_losses(self.losses(log_probs, labels), labels, k)
        present = torch.bincount(labels, minlength=k) > 0
        self._renew(losses.detach().double(), present)
        scaled = self.class_weights[present].to(losses.dtype) * losses  # eq. 7
        return (losses + scaled).sum()

    def class_weights_of(self, counts: Tensor) -> Tensor:
        each = 1 + (self.class_weights if len(self.class_weights) else torch.zeros_like(counts, dtype=torch.float64))
        return each / torch.where(counts > 0, counts, 1) if self.class_reduce == "mean" else each

    def reweigh(self, losses: Tensor, labels: Tensor, k: int) -> float:
        present = torch.bincount(labels, minlength=k) > 0
        return self._renew(self._class_losses(losses.double(), labels, k), present)

    def reweigh_classes(self, sums: Tensor, counts: Tensor) -> float:
        present = counts > 0
        reached = sums[present] / counts[present] if self.class_reduce == "mean" else sums[present]
        return self._renew(reached, present)

    def _class_losses(self, losses: Tensor, labels: Tensor, k: int) -> Tensor:
        """The loss of each class that occurs (eq. 3)."""
        if self.counts is not None:
            counts = self.counts.to(losses.dtype)
            total = losses.new_zeros(k).index_add(0, labels, losses * counts)
            count = torch.bincount(labels, counts, minlength=k)
            return (total / count if self.class_reduce == "mean" else total)[count > 0]
        sizes = [n for n in torch.bincount(labels, minlength=k).tolist() if n]
        by_class = torch.split(losses[torch.argsort(labels, stable=True)], sizes)
        return torch.stack([rows.mean() if self.class_reduce == "mean" else rows.sum() for rows in by_class])

    def _renew(self, reached: Tensor, present: Tensor) -> float:
        k = len(present)
        if self._looks == 0:
            self._first_losses = reached
        elif self._looks == 1:
            self.alpha, self.beta = self._choose(self._first_losses, reached, k)
        before = 1 + self.class_weights if self._looks else None
        self.class_weights = torch.zeros(k, dtype=torch.float64, device=reached.device)
        self.class_weights[present] = scale(self._normalised(reached), self.alpha, self.beta)
        self._looks += 1
        return _largest_change(before, 1 + self.class_weights)

    def _normalised(self, losses: Tensor) -> Tensor:
        centre = losses.amin() if self.normalise == "mm" else losses.mean()
        if self.normalise == "nd":
            # Fewer classes than degrees of freedom have no spread to speak of.
            spread = losses.std(correction=self.ddof) if len(losses) > max(self.ddof, 1) else losses.new_zeros(())
        else:
            spread = losses.amax() - losses.amin()
        even = not bool(spread > 1e-12 * losses.abs().amax())
        return torch.zeros_like(losses) if even else (losses - centre) / spread

    def _choose(self, before: Tensor, after: Tensor, k: int) -> tuple[float, float]:
        """The α and β that make the predicted spread of the class losses least (eq. 6)."""
        alpha_range = (self.LOW_ALPHA, max(math.log(k) / 2, self.LOW_ALPHA))
        first, second = before.cpu().numpy(), after.cpu().numpy()
        from scipy.optimize import minimize  # here, because it takes longer to import than all of temperance

        normalised = self._normalised(after).cpu()
        change = second - first

        def spread(shape: Any) -> float:
            w = scale(normalised, float(shape[0]), float(shape[1])).numpy()
            predicted = first - w * change if self.step == "paper" else first + (1 + w) * change
            return float(np.linalg.norm(predicted - second.mean()))

        start = (min(max(self.FIRST_ALPHA, alpha_range[0]), alpha_range[1]), self.FIRST_BETA)
        with warnings.catch_warnings():
            # SLSQP clips a step that leaves the box by a rounding error, and says so.
            warnings.simplefilter("ignore", RuntimeWarning)
            found = minimize(spread, start, method="SLSQP", bounds=(alpha_range, self.BETA_RANGE))
        # At a corner of the box SLSQP may report failure though it is there; worse than the start is a real failure.
        better = np.isfinite(found.x).all() and spread(found.x) <= spread(start)
        return (float(found.x[0]), float(found.x[1])) if better else (self.FIRST_ALPHA, self.FIRST_BETA)

    @property
    def info(self) -> dict[str, Any]:
        return {"alpha": self.alpha, "beta": self.beta, "class_weights": self.class_weights.tolist()}


# --------------------------------------------------------------------------------------------------- all rows together


@objective(convex=False, whole=True)
class SoftEce(Objective):
    """Soft-binned ECE, the objective of SMART: ECE over bins to which each sample belongs in part.

    Σ_b (S_b / n) √((A_b − C_b)² + δ²): sample i belongs to bin b by softmax_b(−(c_i − ξ_b)² / temperature), ξ_b the
    bin's middle; S_b, A_b and C_b are the bin's weight, accuracy and mean confidence (Karandikar et al. 2021, eq. 11),
    and δ, `rounding`, rounds the kink of |A_b − C_b| off. It looks at the most probable class alone.

    n_bins       number of bins
    temperature  how far a sample reaches into other bins
    rounding     below this gap a bin counts by its square

    Guo et al., Sample margin-aware recalibration of temperature scaling, ICML 2026.
    """

    def __init__(self, *, n_bins: Count = 15, temperature: Positive = 0.01, rounding: Positive = 1e-3) -> None:
        self.n_bins = n_bins
        self.temperature = temperature
        self.rounding = rounding

    def losses(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        top, predicted = log_probs.max(1)
        confidence = top.exp()
        middles = (torch.arange(self.n_bins, dtype=top.dtype, device=top.device) + 0.5) / self.n_bins
        belongs = (-(confidence[:, None] - middles).square() / self.temperature).softmax(1)
        weight = belongs.sum(0)
        gap = (confidence - (predicted == labels).to(top.dtype)) @ belongs
        return (torch.hypot(gap, self.rounding * weight).sum() / len(labels)).expand(len(labels))


@objective(convex=False, whole=True)
class HCalibration(Objective):
    """h-calibration: the gap between probability and frequency among neighbouring probabilities of any class.

    All n · k pairs of a probability p and of whether its class is the label, q, in order of p. The gap of a pair is
    |Σ (p − q)| / `window` over the `window` pairs around it. Its mean over the pairs of a cluster of p is averaged over
    `n_clusters` clusters (k-means), so that rare large probabilities count as much as the many small ones. The authors
    multiply this by 10⁵ and average it over leaving out each class in turn, at k times the cost; not done here.

    window      pairs that a gap is averaged over
    n_clusters  clusters that count the same

    Huang et al., h-calibration: rethinking classifier recalibration with probabilistic error-bounded objective, 2025.
    """

    def __init__(self, *, window: Count = 201, n_clusters: Count = 15) -> None:
        self.window = window
        self.n_clusters = n_clusters

    def losses(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        probs = log_probs.exp()
        gaps = probs.scatter_add(1, labels[:, None], -torch.ones_like(probs[:, :1])).flatten()
        ordered, order = probs.detach().flatten().sort()
        # From before the first pair to after the last: the sum over a window is a difference.
        sums = torch.cat([gaps.new_zeros(1), gaps[order].cumsum(0)])
        place = torch.arange(len(order), device=order.device)
        first = (place - self.window // 2).clamp_min(0)
        end = (place - self.window // 2 + self.window).clamp_max(len(order))
        local = (sums[end] - sums[first]).abs() / self.window
        sizes = _cluster_sizes(ordered, self.n_clusters)
        share = (1 / sizes.to(local.dtype)).repeat_interleave(sizes)
        return ((share * local).sum() / len(sizes)).expand(len(labels))


def _cluster_sizes(ordered: Tensor, n: int, steps: int = 20) -> Tensor:
    """How many of these rising values each cluster of k-means has, from the lowest on, without empty ones."""
    sums = torch.cat([ordered.new_zeros(1), ordered.cumsum(0)])
    centres = torch.lerp(ordered[0], ordered[-1], torch.linspace(0, 1, n, dtype=ordered.dtype, device=ordered.device))
    for _ in range(steps):
        inner = torch.searchsorted(ordered, (centres[1:] + centres[:-1]) / 2)
        edges = torch.cat([inner.new_zeros(1), inner, inner.new_tensor([len(ordered)])])
        sizes = edges.diff()
        centres = torch.where(sizes > 0, sums[edges].diff() / sizes.clamp_min(1), centres)
    return sizes[sizes > 0]


def scale(normalised: Tensor, alpha: float, beta: float) -> Tensor:
    """The weight of a class from its normalised loss, between −β/2 and β/2 (SCTL eq. 5)."""
    return beta * torch.sigmoid(normalised / alpha) - beta / 2


def _largest_change(before: Tensor | None, after: Tensor) -> float:
    if before is None:
        return math.inf
    return float((after - before).abs().amax() / after.abs().amax().clamp_min(1e-300))
