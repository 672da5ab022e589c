"""MaC-Cal: a classifier trained with random masks on its weights, and a keep rate that calibrates it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from temperance.errors import InputError
from temperance.heads.base import Head, TrainingSettings, head
from temperance.heads.features import Features, FeatureSet
from temperance.heads.linear import Start, check_start
from temperance.heads.loop import FeatureBatch, measured, nll_of, on_val
from temperance.heads.masked import Layout, UsedWeights, lower, moved_rate, step_bound
from temperance.losses import Loss
from temperance.numerics import zero_of
from temperance.settings import Count, Fraction, Positive, PositiveFraction

# The ways to deploy a head that was trained with masks.
Way = Literal["scaled", "full", "last_mask", "mc_masks"]

# The lowest keep rate that a search tries: a rate of 0 keeps nothing.
LOWEST_RATE = 0.01

# The keep rate has not settled if confidence and discounted accuracy are this far apart after the last epoch.
UNSETTLED = 0.02

# The method of the paper, whose widths and γ it does not give.
PAPER: dict[str, Any] = {"width": "auto", "acc_discount": 0.95}

# Table 5 of the paper; each row adds to the one before, and the last is the whole method.
ABLATION: dict[str, dict[str, Any]] = {
    "vanilla": {"start": "classifier", "epochs": 0, "keep_prob": 1.0, "adapt": False},
    "masked-retraining": {"adapt": False, "restrict": None},
    "gradient-restriction": {"adapt": False},
    "classifier-restructure": {"adapt": False, "width": "auto"},
    "static-sparsity": {**PAPER, "last_step": 0.1},
    "paper": PAPER,
}

# Keeps the accuracy and gives the best probabilities: the network's own classifier, not trained further, averaged over
# many masks, with the keep rate at which confidence equals accuracy on held-out features.
KEPT_ACCURACY = {
    "start": "classifier",
    "adapt": False,
    "search": True,
    "deploy": "mc_masks",
    "n_masks": 100,
    "epochs": 0,
}

# Masked retraining as in the paper's Fig. 1: a few epochs from the network's classifier, with one mask per epoch.
MOTIVATION = {"start": "classifier", "epochs": 5, "adapt": False, "mask_every": "epoch"}


@head(
    name="mac-cal",
    paper="Ni et al., Deep neural network calibration by reducing classifier shift with stochastic masking, 2025",
    needs_val=True,
    presets={**ABLATION, "motivation": MOTIVATION, "kept-accuracy": KEPT_ACCURACY},
)
class MaCCal(Head):
    """MaC-Cal: a fresh classifier trained with masked weights, whose keep rate makes it as confident as it is accurate.

    In every step a Bernoulli mask M keeps each weight with the keep rate, logits = z (M ⊙ W) + b (eq. 9), and only kept
    weights get a gradient (eq. 11). After epoch t the rate q moves by clip(Conf − acc_discount · Acc, ±η_t) (eq. 12).
    η_t decays from `first_step` to `last_step` (eq. 13).

    width         hidden units between two layers; "auto": max(classes, features // 4); None: one linear layer
    activation    "relu", "tanh", "gelu" or None between the two layers
    start         "random", or "classifier": the network's own, for a single layer
    keep_prob     initial keep rate; with adapt=False that of every epoch
    keep_min      lowest keep rate
    adapt         update the keep rate after every epoch (eq. 12)
    acc_discount  γ of eq. 12, for confidence and accuracy of the training features, where accuracy is too high; "auto":
                  measure both on held-out features, where no discount is needed; the two are then equal at the end, and
                  `info` has the γ that would lead there
    search        after training, find by bisection the keep rate at which confidence equals accuracy on held-out
                  features, and deploy it with the weights divided by it, so that their mean stays as trained; keep all
                  weights if that does not lower the NLL there significantly
    first_step    how far the keep rate may move after an epoch, at the start
    last_step     how far the keep rate may move after an epoch, at the end
    q_means       "sparsity": q is the share of dropped weights; "retention": of kept ones
    restrict      "grad": masked weights get no gradient, though momentum and weight decay still move them;
                  "update": they do not move at all; None: they get the gradient as if they were kept
    mask_every    a new mask for every "batch" or "epoch"
    mask_layers   the layers whose weights are masked: "both", "first" or "last"
    in_place      masked weights are set to zero and stay there until their gradient moves them
    measure       how Conf and Acc are measured: "training", in the epoch's own masked steps, or after the epoch with
                  the weights as in one of the ways to `deploy` them
    deploy        the deployed weights: all times the keep rate ("scaled"), all ("full"), those of the "last_mask", or
                  "mc_masks": the mean of the probabilities under `n_masks` masks, drawn once and saved with the head
    n_masks       number of masks of deploy="mc_masks"

    The trap is the sign of eq. 12. The paper calls q both a retention and a sparsity. As a retention it ended at 1 on
    CIFAR-100, however it was measured, which is plain retraining and just as over-confident. As a sparsity, with the
    head measured and deployed as it was trained (weights times the keep rate), it settles where the head is calibrated.
    That is the default here. The paper's text draws one mask per epoch, its Algorithm 1 one per batch. It gives no γ
    and no width of its two layers. With γ = 0.95 and two layers the ECE of half of the networks rose; so one layer and
    γ from held-out features are the default, and the preset "paper" has the others.

    Presets: the rows of the paper's ablation (Table 5), of which the last, "paper", is its method; its masked
    retraining for Fig. 1 ("motivation"); and "kept-accuracy": the network's own classifier, averaged over 100 masks,
    with the keep rate found on held-out features. The guide to heads has the numbers of every reading and preset.
    """

    weights: Tensor
    masks: Tensor

    def __init__(
        self,
        *,
        width: Count | Literal["auto"] | None = None,
        activation: Literal["relu", "tanh", "gelu"] | None = "relu",
        start: Start = "random",
        keep_prob: PositiveFraction = 0.5,
        keep_min: Fraction = 0.05,
        adapt: bool = True,
        acc_discount: PositiveFraction | Literal["auto"] = "auto",
        search: bool = False,
        first_step: Positive = 0.1,
        last_step: Positive = 0.001,
        q_means: Literal["sparsity", "retention"] = "sparsity",
        restrict: Literal["grad", "update"] | None = "grad",
        mask_every: Literal["batch", "epoch"] = "batch",
        mask_layers: Literal["both", "first", "last"] = "both",
        in_place: bool = False,
        measure: Literal["scaled", "full", "last_mask", "mc_masks", "training"] = "scaled",
        deploy: Way = "scaled",
        n_masks: Count = 10,
        **training: Unpack[TrainingSettings],
    ) -> None:
        super().__init__(**training)
        self.width = width
        self.activation = activation
        self.start = start
        self.keep_prob = keep_prob
        self.keep_min = keep_min
        self.adapt = adapt
        self.acc_discount = acc_discount
        self.search = search
        self.first_step = first_step
        self.last_step = last_step
        self.q_means = q_means
        self.restrict = restrict
        self.mask_every = mask_every
        self.mask_layers = mask_layers
        self.in_place = in_place
        self.measure = measure
        self.deploy = deploy
        self.n_masks = n_masks

    def _check_settings(self) -> None:
        if self.start == "classifier" and self.width is not None:
            raise InputError("start='classifier' needs a single layer, width=None; a bottleneck starts at random")
        if self.measure == "training" and self._adapts_to_held_out:
            raise InputError(
                "acc_discount='auto' measures on held-out features, measure='training' does not: set acc_discount to a "
                "number, such as 0.95"
            )
        if self.search and self.deploy != "mc_masks":
            raise InputError("search=True finds the keep rate of averaged masks: set deploy='mc_masks'")

    def _check_features(self, features: Features) -> None:
        check_start(self.start, features)

    def _needs_val(self) -> str:
        return "search=True" if self.search else "acc_discount='auto'" if self._adapts_to_held_out else ""

    @property
    def _adapts_to_held_out(self) -> bool:
        return self.adapt and self.acc_discount == "auto"

    # Training: one vector of all weights and biases, and a mask of the same length, 1 at the biases.

    def _build(self, d: int, k: int) -> None:
        hidden = [] if self.width is None else [max(k, d // 4) if self.width == "auto" else int(self.width)]
        self._layout = Layout((d, *hidden, k), self.activation)
        self._masked = self._layout.weights(self.mask_layers)
        self.register_buffer("weights", torch.empty(self._layout.size))
        self.register_buffer("masks", torch.empty(0, dtype=torch.bool))

    def _begin(self, features: Features, generator: torch.Generator) -> None:
        vector = self._layout.start(generator)
        if self.start == "classifier" and features.classifier is not None:
            weight, bias = features.classifier
            vector = torch.cat([weight.flatten() / self.keep_prob, bias])
        self._trained = nn.Parameter(vector.to(features.device))
        self._mask = torch.ones_like(self._trained, requires_grad=False)
        self._before, self._drawn = self._mask, torch.empty_like(self._mask[self._masked])
        self._rate = self._next_rate = float(self.keep_prob)
        self._gap = 0.0
        # The sums of confidence and of correct predictions over the epoch's own steps.
        self._seen = torch.zeros(2, dtype=torch.float64, device=features.device)

    def _begin_epoch(self, generator: torch.Generator) -> None:
        # The rate moves here, not in `_end_epoch`, so that in the end it is the rate the head was trained with.
        self._rate = self._next_rate
        self._seen.zero_()
        if self.mask_every == "epoch":
            self._draw(generator)

    def _logits(self, features: Tensor, generator: torch.Generator) -> Tensor:
        with torch.no_grad():
            if self.mask_every == "batch":
                self._draw(generator)
            if self.restrict == "update":
                self._before = self._trained.clone()
        vector = self._trained * self._mask
        if self.restrict is None:
            vector = self._trained + (vector - self._trained).detach()
        return self._layout.logits(vector, features)

    def _objective(self, batch: FeatureBatch, loss: Loss, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        value, logits = super()._objective(batch, loss, generator)
        if self.measure == "training":
            top, prediction = logits.detach().log_softmax(1).max(1)
            self._seen += torch.stack([top.double().exp().sum(), (prediction == batch.labels).sum().double()])
        return value, logits

    def _after_step(self) -> None:
        if self.restrict == "update":
            self._trained.copy_(torch.where(self._mask > 0, self._trained, self._before))

    def _end_epoch(self, epoch: int, features: Features, generator: torch.Generator) -> dict[str, Any]:
        self._hold(self._as(self.deploy, generator))
        row, confidence, accuracy = self._measured(features, generator)
        if self.adapt:
            discount = 1.0 if isinstance(self.acc_discount, str) else self.acc_discount
            bound = step_bound(epoch, self.epochs, self.first_step, self.last_step)
            q = 1 - self._rate if self.q_means == "sparsity" else self._rate
            q = moved_rate(q, confidence, accuracy, discount, bound)
            self._next_rate = max(1 - q if self.q_means == "sparsity" else q, self.keep_min)
            self._gap = confidence - discount * accuracy
        return {"keep_rate": self._rate, **row}

    def _measured(self, features: Features, generator: torch.Generator) -> tuple[dict[str, float], float, float]:
        """The entries of the history, named after the part that was measured, and Conf and Acc of eq. 12."""
        if self.measure == "training":
            confidence, accuracy = (self._seen / len(features.train)).tolist()
            return {"accuracy": accuracy, "confidence": confidence}, confidence, accuracy
        same = self.measure == self.deploy
        used = UsedWeights(self.weights, self.masks) if same else self._as(self.measure, generator)
        held_out = features.val if self._adapts_to_held_out else None
        part = features.train if held_out is None else held_out
        found = measured(lambda x: self._layout.mean_logits(used, self._masked, x), part)
        if held_out is None:
            row = {"accuracy": found.accuracy, "confidence": found.confidence}
        elif same:
            row = on_val(found)
        else:
            row = {f"val_{name}_{self.measure}": getattr(found, name) for name in ("accuracy", "confidence")}
        return row, found.confidence, found.accuracy

    def _finish(self, features: Features, generator: torch.Generator) -> None:
        self.info = {"keep_rate": self._rate}
        if self.adapt and self.history and not self.search:
            self.info["settled"] = abs(self._gap) <= UNSETTLED or self._next_rate == self._rate
        if self.search and features.val is not None:
            self._search(features.val, generator)
        elif not self.history:
            self._hold(self._as(self.deploy, generator))
        if self._adapts_to_held_out:
            found = measured(self._deployed, features.train)
            # The discount at which eq. 12 would leave the rate alone, with these weights measured on the training data.
            self.info["acc_discount"] = found.confidence / max(found.accuracy, 1e-6)
        del self._trained
        self._mask = self._before = self._drawn = self._seen = self.weights.new_empty(0)

    def _search(self, part: FeatureSet, generator: torch.Generator) -> None:
        """Deploy the keep rate at which confidence equals accuracy, or all weights if masks do not lower the NLL.

        All rates share their random numbers, so that they can be compared.
        """
        drawn = torch.empty(self.n_masks, self._masked.stop - self._masked.start, device=self._trained.device)
        drawn.uniform_(generator=generator)

        def at(rate: float) -> UsedWeights:
            vector = self._trained.detach().clone()
            vector[self._masked] *= self._rate / rate
            return UsedWeights(vector, drawn < rate if rate < 1 else drawn[:0].bool())

        def logits_at(rate: float) -> Callable[[Tensor], Tensor]:
            used = at(rate)
            return lambda x: self._layout.mean_logits(used, self._masked, x)

        tried: dict[float, float] = {}

        def gap(rate: float) -> float:
            found = measured(logits_at(rate), part)
            tried[rate] = found.confidence - found.accuracy
            return tried[rate]

        best = zero_of(gap, max(self.keep_min, LOWEST_RATE), 1.0)
        if best < 1 and not lower(*(nll_of(logits_at(rate), part) for rate in (best, 1.0))):
            best = 1.0
        self._hold(at(best))
        self.info |= {"keep_rate": best, "tried": [list(pair) for pair in sorted(tried.items())]}

    @property
    def caveat(self) -> str:
        if self.info.get("settled") is False:
            return (
                f"The keep rate had not settled after {self.epochs} epochs: train for more epochs, or set a larger "
                "last_step."
            )
        if self.search and self.info.get("keep_rate") == 1:
            return "Masks do not lower the NLL on the validation samples significantly, so the head keeps every weight."
        return ""

    def _deployed(self, features: Tensor) -> Tensor:
        return self._layout.mean_logits(UsedWeights(self.weights, self.masks), self._masked, features)

    def _draw(self, generator: torch.Generator) -> None:
        # Three times as fast on a CPU as `bernoulli_`.
        self._drawn.uniform_(generator=generator)
        torch.lt(self._drawn, self._rate, out=self._mask[self._masked])
        if self.in_place:
            self._trained.mul_(self._mask)

    def _as(self, way: str, generator: torch.Generator) -> UsedWeights:
        """The trained weights as they are measured or used."""
        vector = self._trained.detach().clone()
        drawn = torch.empty(self.n_masks if way == "mc_masks" else 0, len(vector[self._masked]), device=vector.device)
        if way == "last_mask":
            vector *= self._mask
        elif way == "scaled":
            vector[self._masked] *= self._rate
        return UsedWeights(vector, drawn.bernoulli_(self._rate, generator=generator).bool())

    def _hold(self, used: UsedWeights) -> None:
        self.weights.copy_(used.weights)
        self.masks = used.masks

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        """Load as any module does, with as many masks as were saved."""
        if self._buffers and f"{prefix}masks" in state_dict:
            self.masks = torch.empty_like(state_dict[f"{prefix}masks"], device=self.weights.device)
        super()._load_from_state_dict(state_dict, prefix, *more)
