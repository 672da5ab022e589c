"""MaC-Cal: a fresh classifier trained with random weights masked, as many of them as make it honest."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from temperance.errors import InputError, at_least, one_of, positive, positive_fraction, switch
from temperance.heads.base import Head, TrainingSettings, head
from temperance.heads.features import Features
from temperance.heads.linear import check_start
from temperance.heads.loop import measured, on_val
from temperance.heads.masked import ACTIVATIONS, Layout, Used, moved_rate, step_bound

# How a head that was trained with masks is measured or used.
WAYS = ("scaled", "full", "last_mask", "mc_masks")

# Table 5 of the paper; each row adds to the one before.
ABLATION: dict[str, dict[str, Any]] = {
    "vanilla": {"width": None, "start": "classifier", "epochs": 0, "keep_prob": 1.0, "adapt": False},
    "masked-retraining": {"width": None, "adapt": False, "restrict": "none"},
    "gradient-restriction": {"width": None, "adapt": False},
    "classifier-restructure": {"adapt": False},
    "static-sparsity": {"last_step": 0.1},
    "decaying-sparsity": {},
}

# What keeps the accuracy and gives the best probabilities: the network's own classifier, hardly trained, and the mean
# over many masks of it, with as many weights dropped as make it as sure on held-out data as it is right.
KEPT_ACCURACY = {
    "width": None,
    "start": "classifier",
    "keep_prob": 0.6,
    "acc_discount": "auto",
    "measure": "mc_masks",
    "deploy": "mc_masks",
    "n_masks": 100,
    "epochs": 10,
    "lr": 0.001,
}

# Masked retraining as in the paper's Fig. 1: a few epochs from the network's classifier, a mask for each.
MOTIVATION = {"width": None, "start": "classifier", "epochs": 5, "adapt": False, "mask_every": "epoch"}


@head(
    name="mac-cal",
    paper="Ni et al., Deep neural network calibration by reducing classifier shift with stochastic masking, 2025",
    presets={**ABLATION, "motivation": MOTIVATION, "kept-accuracy": KEPT_ACCURACY},
)
class MaCCal(Head):
    """MaC-Cal: a fresh bottleneck classifier trained with masked weights, whose keep rate follows its overconfidence.

    In every step each weight is kept with the keep rate, logits = z (M ⊙ W) + b (eq. 9), and only kept weights get a
    gradient (eq. 11). After epoch t the rate q moves by clip(Conf − acc_discount · Acc, ±η_t) (eq. 12), measured on the
    training features, where accuracy overstates: acc_discount takes that back. η_t decays from `first_step` to
    `last_step` (eq. 13).

    width         hidden units of the bottleneck; "auto": max(classes, features // 4); None: one linear layer
    activation    "relu", "tanh", "gelu" or None between the two layers
    start         "random", or "classifier": the network's own, for a single layer
    keep_prob     share of weights that is kept, at first; always, with adapt=False
    keep_min      the keep rate never falls below
    acc_discount  γ of eq. 12; "auto": none is needed, because confidence and accuracy are measured on held-out
                  features, so that the loop ends where the two are equal there; `info` says which γ that amounts to
    q_means       "sparsity": q is the share of dropped weights; "retention": of kept ones
    restrict      "grad": masked weights get no gradient, though momentum and weight decay still move them;
                  "update": they do not move at all; "none": they get the gradient as if they were kept
    mask_every    a new mask for every "batch" or "epoch"
    mask_layers   "both", "first" or "last"
    in_place      masked weights are set to zero for good, until their gradient brings them back
    measure       what confidence and accuracy are measured with, and
    deploy        what is used in the end: all weights times the keep rate ("scaled"), all weights ("full"), those of
                  the "last_mask", or "mc_masks": the mean of the probabilities under `n_masks` masks, drawn once and
                  kept with the head

    The trap is the sign of eq. 12. The paper calls q a retention and a sparsity. As a retention, with either way to
    measure, it ends at 1, which is plain retraining and as overconfident; as a sparsity, with the head measured and
    deployed as it was trained (weights times the keep rate), it settles where the head is calibrated. That is the
    default here. The paper's text draws a mask an epoch, its Algorithm 1 one a batch; width and γ are not in it.

    Presets: the rows of the paper's ablation (Table 5), its masked retraining for Fig. 1 ("motivation"), and
    "kept-accuracy": no fresh classifier but the network's own, used as the mean over 100 masks of it, with the keep
    rate set on held-out features. Of a ResNet-18 on CIFAR-100 it takes ECE from 8.7 % to about 1 % and NLL from 0.998
    to 0.913 at the same accuracy, where temperature scaling reaches 3.2 % and 0.941. The averaging does it, not the
    training: with a learning rate of 0 it is as good, with 0.1 its NLL is worse than temperature scaling's.
    """

    weights: Tensor
    masks: Tensor

    def __init__(
        self,
        *,
        width: int | str | None = "auto",
        activation: str | None = "relu",
        start: str = "random",
        keep_prob: float = 0.5,
        keep_min: float = 0.05,
        adapt: bool = True,
        acc_discount: float | str = 0.95,
        first_step: float = 0.1,
        last_step: float = 0.001,
        q_means: str = "sparsity",
        restrict: str = "grad",
        mask_every: str = "batch",
        mask_layers: str = "both",
        in_place: bool = False,
        measure: str = "scaled",
        deploy: str = "scaled",
        n_masks: int = 10,
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

    def _check(self, features: Features) -> None:
        check_start(self.start, features)
        if self.width not in ("auto", None):
            at_least("width", self.width, 1)
        if self.activation is not None:
            one_of("activation", self.activation, ACTIVATIONS)
        if self.start == "classifier" and self.width is not None:
            raise InputError("start='classifier' needs a single layer, width=None; a bottleneck starts at random")
        positive_fraction("keep_prob", self.keep_prob)
        if isinstance(self.keep_min, bool) or not isinstance(self.keep_min, int | float) or not 0 <= self.keep_min <= 1:
            raise InputError(f"keep_min must be a number from 0 to 1; got {self.keep_min!r}")
        if self.acc_discount != "auto":
            positive_fraction("acc_discount", self.acc_discount)
        elif features.val is None:
            raise InputError("acc_discount='auto' needs held-out features: give val_features and val_labels")
        positive("first_step", self.first_step)
        positive("last_step", self.last_step)
        switch("adapt", self.adapt)
        switch("in_place", self.in_place)
        one_of("q_means", self.q_means, ("sparsity", "retention"))
        one_of("restrict", self.restrict, ("grad", "update", "none"))
        one_of("mask_every", self.mask_every, ("batch", "epoch"))
        one_of("mask_layers", self.mask_layers, ("both", "first", "last"))
        one_of("measure", self.measure, WAYS)
        one_of("deploy", self.deploy, WAYS)
        at_least("n_masks", self.n_masks, 1)

    # Training: one vector of all weights and biases, and a mask of the same length, 1 at the biases.

    def _build(self, d: int, k: int) -> None:
        hidden = [] if self.width is None else [max(k, d // 4) if self.width == "auto" else int(self.width)]
        self._layout = Layout((d, *hidden, k), self.activation)
        self._masked = self._layout.weights(self.mask_layers)
        masks = self.n_masks if self.deploy == "mc_masks" else 0
        self.register_buffer("weights", torch.empty(self._layout.size))
        self.register_buffer("masks", torch.empty(masks, self._masked.stop - self._masked.start, dtype=torch.bool))

    def _begin(self, features: Features, generator: torch.Generator) -> None:
        vector = self._layout.start(generator)
        if self.start == "classifier" and features.classifier is not None:
            weight, bias = features.classifier
            vector = torch.cat([weight.flatten() / self.keep_prob, bias])
        self._trained = nn.Parameter(vector.to(features.device))
        self._mask = torch.ones_like(self._trained, requires_grad=False)
        self._before, self._drawn = self._mask, torch.empty_like(self._mask[self._masked])
        self._rate = self._next_rate = float(self.keep_prob)

    def _begin_epoch(self, generator: torch.Generator) -> None:
        # Only now: after the last epoch the rate stays what the head was trained with.
        self._rate = self._next_rate
        if self.mask_every == "epoch":
            self._draw(generator)

    def _logits(self, features: Tensor, generator: torch.Generator) -> Tensor:
        with torch.no_grad():
            if self.mask_every == "batch":
                self._draw(generator)
            if self.restrict == "update":
                self._before = self._trained.clone()
        vector = self._trained * self._mask
        if self.restrict == "none":
            vector = self._trained + (vector - self._trained).detach()
        return self._layout.logits(vector, features)

    def _after_step(self) -> None:
        if self.restrict == "update":
            self._trained.copy_(torch.where(self._mask > 0, self._trained, self._before))

    def _end_epoch(self, epoch: int, features: Features, generator: torch.Generator) -> dict[str, Any]:
        deployed = self._as(self.deploy, generator)
        self._hold(deployed)
        used = deployed if self.measure == self.deploy else self._as(self.measure, generator)
        # On held-out data accuracy is what it is; on the training data it is discounted.
        held_out = features.val if isinstance(self.acc_discount, str) else None
        found = measured(
            lambda x: self._layout.mean_logits(used, self._masked, x), features.train if held_out is None else held_out
        )
        row = {"keep_rate": self._rate, "accuracy": found.accuracy, "confidence": found.confidence}
        if self.adapt:
            discount = 1.0 if isinstance(self.acc_discount, str) else self.acc_discount
            bound = step_bound(epoch, self.epochs, self.first_step, self.last_step)
            q = 1 - self._rate if self.q_means == "sparsity" else self._rate
            q = moved_rate(q, found.confidence, found.accuracy, discount, bound)
            self._next_rate = max(1 - q if self.q_means == "sparsity" else q, self.keep_min)
        known = held_out is not None and used is deployed
        return row | (on_val(found) if known else {})

    def _finish(self, features: Features, generator: torch.Generator) -> None:
        if not self.history:
            self._hold(self._as(self.deploy, generator))
        self.info = {"keep_rate": self._rate}
        if self.adapt and isinstance(self.acc_discount, str):
            found = measured(self._deployed, features.train)
            # The discount at which eq. 12, with these weights measured on the training data, would be at rest.
            self.info["acc_discount"] = found.confidence / max(found.accuracy, 1e-6)
        del self._trained
        self._mask = self._before = self._drawn = self.weights.new_empty(0)

    def _deployed(self, features: Tensor) -> Tensor:
        return self._layout.mean_logits(Used(self.weights, self.masks), self._masked, features)

    def _draw(self, generator: torch.Generator) -> None:
        # Three times as fast on a CPU as `bernoulli_`.
        self._drawn.uniform_(generator=generator)
        torch.lt(self._drawn, self._rate, out=self._mask[self._masked])
        if self.in_place:
            self._trained.mul_(self._mask)

    def _as(self, way: str, generator: torch.Generator) -> Used:
        """What was trained as it is measured or used."""
        vector = self._trained.detach().clone()
        drawn = torch.empty(self.n_masks if way == "mc_masks" else 0, len(vector[self._masked]), device=vector.device)
        if way == "last_mask":
            vector *= self._mask
        elif way == "scaled":
            vector[self._masked] *= self._rate
        return Used(vector, drawn.bernoulli_(self._rate, generator=generator).bool())

    def _hold(self, used: Used) -> None:
        self.weights.copy_(used.weights)
        self.masks.copy_(used.masks)
