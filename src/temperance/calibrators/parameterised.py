"""Parameterised temperature scaling: a small network gives every sample its own temperature."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, Unpack

import torch
from torch import Tensor
from torch.nn.functional import linear

from temperance.calibrators._fit.descent import Solution
from temperance.calibrators._fit.inverse_temperature import (
    HIGH,
    LOW,
    caution_of,
    divided,
    fit_inverse_temperature,
    unit_of,
)
from temperance.calibrators._fit.solvers import Problem, Solver, WithSolver, minimise, sample_weight, train
from temperance.calibrators.base import Shared, calibrator
from temperance.errors import InputError
from temperance.objectives import ObjectiveName
from temperance.settings import NonNegative, Seed

# How many of a sample's largest logits the network sees, and where they are clipped.
MOST_INPUTS = 10
LARGEST_INPUT = 100.0

# The exact solver has a prior for small weights that counts as much as this many samples: without it the network
# memorises a few thousand samples. The network's kinks keep L-BFGS from ever converging fully.
PRIOR_SAMPLES = 15
MAX_STEPS = 100


@dataclass(frozen=True)
class Preset:
    """The shape of a network, where it starts, and how its authors fitted it."""

    hidden: tuple[int, ...]
    start: str  # the initial temperatures: "best" (that of temperature scaling), "one", or "random"
    absolute: bool  # the authors take the absolute value of the output as the temperature
    schedule: tuple[tuple[float, int], ...] | None
    batch: int | None
    margin: bool = False  # the network sees the margin alone


PRESETS = {
    "robust": Preset(hidden=(5, 5), start="best", absolute=True, schedule=None, batch=None),
    "sctl": Preset(hidden=(2, 2, 2, 2), start="random", absolute=False, schedule=None, batch=None),
    "paper": Preset(hidden=(5, 5), start="one", absolute=True, schedule=((5e-5, 100_000),), batch=1000),
    "smart": Preset(hidden=(16,), start="best", absolute=True, schedule=((0.01, 2000),), batch=None, margin=True),
}


@calibrator(family="temperature", preserves_argmax=True, takes_objective=True, scale_free=True)
class ParameterisedTemperature(WithSolver):
    """A temperature for each sample, computed by a small network from its largest logits.

    p = softmax(z / T(z)), T(z) = |h(z_(1), …, z_(s))| clamped to [0.01, 100], h a ReLU network over the s = 10 largest
    logits (all, if there are fewer) in descending order. Since T is positive, the order of a sample's classes never
    changes; the order of samples by confidence can. The network sees logits clipped to ±100. If the logits of most
    samples differ by more than 256, logits and T are in units of a power of two. If its hidden units die, or if the
    samples do not even determine one temperature, all samples get the same: `info["constant"]` says so.

    preset  "robust": two layers of five, started at plain temperature scaling;
            "sctl": the SCTL authors' four layers of two, started at random; many starts die, theirs is `seed=1`;
            "paper": the original authors' two layers of five, with their squared error if `objective="brier"`; their
            program takes 100,000 steps;
            "smart": SMART's one layer of 16, which sees only the margin z_(1) − z_(2), with its objective if
            `objective="soft-ece"`; its authors take a softplus where we take the absolute value
    solver  "exact" is L-BFGS with a line search towards a local optimum, with a prior for small weights without which
            it overfits; "released" is the Adam of the preset's authors, without that prior; the rate of "smart" is ours
    weight_decay  of the released Adam: the SCTL paper prints 0.002, its program uses 0
    seed    for the initial weights

    Tomani, Cremers and Buettner, Parameterized temperature scaling for boosting the expressive power in post-hoc
    uncertainty calibration, ECCV 2022; Guo et al., Sample margin-aware recalibration of temperature scaling, ICML 2026.
    """

    scale: Tensor  # for logits on a very large scale only

    def __init__(
        self,
        *,
        preset: Literal["robust", "sctl", "paper", "smart"] = "robust",
        seed: Seed = 0,
        weight_decay: NonNegative = 0.0,
        objective: ObjectiveName = "nll",
        solver: Solver = "exact",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(objective=objective, solver=solver, **shared)
        self.preset = preset
        self.seed = seed
        self.weight_decay = weight_decay

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.weight_decay and self.solver != "released":
            raise InputError(
                f'weight_decay needs solver="released"; got solver={self.solver!r}, which has a prior of its own'
            )

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        if (scale := unit_of(logits)) != 1:
            self._keep("scale", logits.new_tensor(scale))
            logits = logits / scale
        objective, preset, k = self._make_objective(), PRESETS[self.preset], logits.shape[1]
        exact, generator = self.solver == "exact", torch.Generator().manual_seed(self.seed)
        features = _features(logits, preset)
        start = random_layers((features.shape[1], *preset.hidden, 1), generator)
        inverse, record = fit_inverse_temperature(self._make_objective(), logits, labels)
        constant = "caution" in record
        if preset.start != "random" or constant:
            start[-2].zero_()
            start[-1].fill_(1.0)
        unit = 1 / inverse if preset.start == "best" or constant else 1.0
        # L-BFGS needs standardised inputs; afterwards their centre and spread are folded into the first layer.
        centre, spread = torch.zeros_like(features[0]), torch.ones_like(features[0])
        if exact:
            centre, spread = features.mean(0), features.std(0, correction=0).clamp_min(1e-6)

        def forward(inputs: Tensor, parameters: Tensor) -> Tensor:
            found = unit * _network(inputs[:, k:], split_like(start, parameters))
            return (inputs[:, :k] / (_positive(found) if preset.absolute or exact else found)).log_softmax(1)

        def prior(parameters: Tensor) -> Tensor:
            weights = torch.cat([weight.flatten() for weight in split_like(start, parameters)[::2]])
            return strength * weights.square().sum()

        strength = PRIOR_SAMPLES * sample_weight(objective, labels, k)
        inputs = torch.cat([logits, (features - centre) / spread], 1)
        problem = Problem(objective, forward, inputs, labels, k=k, penalty=prior if exact else None)
        first = torch.cat([layer.flatten() for layer in start]).to(logits)
        if constant:
            found = Solution(first)
        elif exact:
            found = minimise(problem, first, max_steps=MAX_STEPS)
        else:
            found = train(
                problem,
                first,
                optimiser="adam",
                schedule=preset.schedule,
                batch=preset.batch,
                weight_decay=self.weight_decay,
                generator=generator,
            )
        layers = split_like(start, found.parameters)
        layers[1] = layers[1] - layers[0] @ (centre / spread)
        layers[0] = layers[0] / spread
        layers[-2:] = [unit * layer for layer in layers[-2:]]
        for name, layer in zip(self._names(), layers, strict=True):
            self._keep(name, layer)
        low, high = (float(limit) for limit in self.temperatures(scale * logits).aminmax())
        temperatures = {"temperature_range": [low, high], "constant": high - low <= 1e-6 * high}
        self.info = found.info | temperatures | caution_of(record)

    def temperatures(self, logits: Tensor) -> Tensor:
        """The temperature of each row of logits. (n, 1)"""
        scale = self.scale if "scale" in self._buffers else 1.0
        features = _features(logits / scale, PRESETS[self.preset])
        return scale * _positive(_network(features, [getattr(self, name) for name in self._names()]))

    def _calibrate(self, logits: Tensor) -> Tensor:
        return divided(logits, self.temperatures(logits))

    def _names(self) -> list[str]:
        n_layers = len(PRESETS[self.preset].hidden) + 1
        return [f"{kind}_{i}" for i in range(n_layers) for kind in ("weight", "bias")]


def _features(logits: Tensor, preset: Preset) -> Tensor:
    """The largest logits in descending order (n, s), or the margin between the two largest (n, 1)."""
    top = logits.topk(min(2 if preset.margin else MOST_INPUTS, logits.shape[1]), dim=1).values
    seen = top[:, :1] - top[:, -1:] if preset.margin else top
    return seen.clamp(-LARGEST_INPUT, LARGEST_INPUT)


def _positive(temperature: Tensor) -> Tensor:
    return temperature.abs().clamp(LOW, HIGH)


def _network(x: Tensor, layers: list[Tensor]) -> Tensor:
    """The output of a network of alternating weights and biases, with ReLU between the layers. (n, 1)"""
    for weight, bias in zip(layers[:-2:2], layers[1:-2:2], strict=True):
        x = linear(x, weight, bias).relu()
    return linear(x, layers[-2], layers[-1])


def random_layers(units: Sequence[int], generator: torch.Generator) -> list[Tensor]:
    """Alternating random weights and biases of layers with these numbers of units, drawn as torch's own layers do."""
    layers = []
    for n_in, n_out in pairwise(units):
        bound = n_in**-0.5
        for shape in ((n_out, n_in), (n_out,)):
            layers.append(torch.empty(shape).uniform_(-bound, bound, generator=generator))
    return layers


def split_like(layers: list[Tensor], parameters: Tensor) -> list[Tensor]:
    """One vector as tensors of the shapes of these layers."""
    parts = torch.split(parameters, [layer.numel() for layer in layers])
    return [part.view_as(layer) for part, layer in zip(parts, layers, strict=True)]
