"""What a calibrator is: fitted on logits and labels, it turns logits into log-probabilities.

A method writes `_fit` and `_calibrate`, and `_check_settings` where settings have to fit together. It keeps what it
learns in float64 buffers, so a fitted calibrator moves, saves and loads like any other layer and can be the last layer
of a network. A cast of that network (`.half()`, `.to(torch.bfloat16)`) leaves the buffers alone: they only move to
another device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypedDict, TypeVar

import torch
from torch import Tensor, nn

from temperance.arrays import ArrayLike, as_labels, as_logits, as_scores, flatten, refuse_probs, unflatten
from temperance.calibrators import priors
from temperance.calibrators.estimator import Estimator, names_of, numbered
from temperance.calibrators.weights import counted_rows, either, repeated
from temperance.errors import InputError, NotFittedError, TemperanceWarning, amount, plural
from temperance.numerics import working_type
from temperance.registry import Registry, first_line, plain_name
from temperance.settings import HasSettings, changed_settings, check_settings, settings_of
from temperance.showing import Shown, two_columns
from temperance.threads import one_thread

# What to do with probabilities that were given as logits.
AS_LOGITS = "pass log-probabilities, numpy.log(probs)"

# Up to this many values are fitted on one thread of a CPU. A fit is thousands of small operations, and torch's threads
# wait for each other after each of them: seldom worth it, and on a busy machine many times slower than the work.
ONE_THREAD_VALUES = 1 << 20

# What is kept of the fit part besides what a method learns from it.
FIT_PART = tuple(field.name for field in fields(priors.FitPart))
ABOUT_FIT = ("n_classes", *FIT_PART, "target_prior")

Prior = Literal["uniform", "same"] | list[float]


class Shared(TypedDict, total=False):
    """The settings that every calibrator has besides its own; they are those of `Calibrator`."""

    prior: Prior | None


class Calibrator(Estimator, Shown, HasSettings, nn.Module):
    """Turns logits into calibrated probabilities.

    `fit(logits, labels)` learns from held-out predictions and forgets any earlier fit; `predict_proba(logits)` gives
    probabilities; called as a layer it gives log-probabilities in the type of its logits. Everything is computed in
    float64, or in float32 on a device without float64. Where the samples leave something undetermined, `fit` warns, and
    `info["caution"]` keeps the sentence.

    prior  how common the classes are in use: "uniform", a number for each class in proportion to its frequency, or
           "same" as in the fit part. Without it nothing is corrected, and `fit` warns if the samples are imbalanced
    """

    summary: ClassVar[str]
    family: ClassVar[str]
    preserves_argmax: ClassVar[bool]
    takes_objective: ClassVar[bool]
    takes_weights: ClassVar[bool]
    min_samples: ClassVar[int]
    steady_from: ClassVar[int] = 1

    n_classes: Tensor
    implied_prior: Tensor
    target_prior: Tensor  # with a prior only
    # `n_classes` as a Python number, which can be read while a network is traced.
    _k: int | None = None
    # Where it computes: known before it is fitted, so that what it loads goes to the same place.
    _device: torch.device = torch.device("cpu")

    def __init__(self, *, prior: Prior | None = None) -> None:
        super().__init__()
        self.prior = prior
        self.info: dict[str, Any] = {}

    # What a method writes.

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        """Learn from float64 logits (n, k) and int64 labels (n,); keep what is learnt with `_keep`."""
        raise NotImplementedError

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """As `_fit`, where each row stands for as many samples as its weight says (n,), for one that `takes_weights`.

        Weights are above 0. They sum to the number of samples, so a method that reads n takes their sum.
        """
        raise NotImplementedError

    @property
    def _one_by_one(self) -> str:
        """The name of what counts samples one by one and so takes whole weights only; empty if nothing does."""
        return "" if self.takes_weights else self.name

    def _calibrate(self, logits: Tensor) -> Tensor:
        """Log-probabilities (n, k) of float64 logits (n, k)."""
        raise NotImplementedError

    # What everyone calls.

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        ignore_index: int | None = None,
        weights: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn from logits (n, k) or (n, k, *space) and labels that the network was not trained on.

        Labels are class numbers, or text: then the columns are the sorted classes, as in scikit-learn.
        `weights` say how much each label counts: a whole number as that many equal samples, 0 as none. If some are
        not whole, only their proportions matter, and together they count as (Σw)² / Σw² samples.
        `sample_weight` is scikit-learn's name for them.
        """
        self.check_settings()
        weights = either(weights, sample_weight)
        scores = as_scores(logits, "logits")
        home = scores.device
        exact = home if working_type(home) == torch.float64 else torch.device("cpu")
        with torch.no_grad(), one_thread(where=exact.type == "cpu" and scores.numel() <= ONE_THREAD_VALUES):
            given = as_logits(scores)
            names = names_of(labels, given.shape[1])
            truth = as_labels(numbered(labels, names), given, ignore_index=ignore_index).reshape(-1).to(exact)
            rows = flatten(given).to(exact).double()
            rows, truth, counts = counted_rows(rows, truth, ignore_index, weights, given)
            self._fit_rows(rows, truth, counts)
            self.class_names = names
            self._keep_reference(rows, truth, counts)
        return self.set_prior(self.prior).to(home)._warn(torch.bincount(truth, counts))

    def _warn(self, counts: Tensor) -> Self:
        """Say what must not be trusted, after a fit to this many samples of each class."""
        cautions = [self.info.get("caution"), priors.imbalance(counts) if self.prior is None else None]
        for caution in filter(None, cautions):
            # Without the method's name, so that Python shows it once if many methods are fitted to the same samples.
            warnings.warn(caution, TemperanceWarning, stacklevel=3)
        return self

    def _fit_rows(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Fit to checked float64 logits (n, k) and int64 labels (n,), without a warning."""
        if weights is not None and self._one_by_one:
            index = repeated(self._one_by_one, weights)
            logits, labels, weights = logits[index], labels[index], None
        self._check_fit(logits, labels)
        self._forget()
        if weights is None:
            self._fit(logits, labels)
        else:
            self._fit_weighted(logits, labels, weights)
        n = len(labels) if weights is None else float(weights.sum())
        if n < self.steady_from:
            says = f"with fewer than about {self.steady_from} samples {self.name} can double the NLL; got {amount(n)}"
            self.info.setdefault("caution", f"{says}. Fit on more samples, or use temperature or auto")
        self._keep("n_classes", torch.tensor(logits.shape[1], device=logits.device))

    @one_thread()  # also for many samples: its many small operations would wait for torch's threads
    def _keep_reference(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> None:
        """Keep what `set_prior` and `adapt` need to know of the fit part; of very many rows some are enough."""
        some = slice(None, None, max(1, logits.numel() // priors.MOST_VALUES))
        rows, counts = logits[some], None if weights is None else weights[some]
        found = priors.FitPart.of(rows, self._calibrate(rows), labels[some], counts)
        for name in FIT_PART:
            self._keep(name, getattr(found, name))

    def set_prior(self, prior: str | ArrayLike | None) -> Self:
        """Correct a fitted calibrator for how common the classes are in use; None or "same" removes the correction.

        A prior can change predictions, whatever the method: a class that becomes more common is predicted more often.
        """
        self._check_fit_part()
        if prior is None or (isinstance(prior, str) and prior == priors.SAME):
            self._buffers.pop("target_prior", None)
        else:
            self._keep("target_prior", priors.as_prior(prior, self.implied_prior))
        return self

    def adapt(self, logits: ArrayLike) -> priors.PriorShift:
        """Estimate from predictions without labels how common the classes are there, and correct for it.

        The result has an interval for every frequency and says whether they differ from those of the fit part. Only
        then is anything corrected: otherwise an earlier prior is removed, or stays if these are too few to tell. If
        something else has changed too, this warns.
        """
        self._check_fit_part()
        rows = flatten(as_logits(logits)).to(self._device)
        rows = rows.to(working_type(rows.device))
        about = priors.FitPart(*(self.get_buffer(name) for name in FIT_PART))
        with torch.no_grad():
            found = priors.estimate(self._calibrate(rows), rows, about)
        if found.applied is not None or found.as_fitted:
            self.set_prior(found.applied)
        if found.other_shift:
            warnings.warn(found.about_rest, TemperanceWarning, stacklevel=2)
        return found

    def _check_fit_part(self) -> None:
        self.k  # noqa: B018  (raises if it is not fitted)
        if any(name not in self._buffers for name in FIT_PART):
            raise InputError(f"this {self.name} calibrator was saved without its class frequencies: fit it again")

    def forward(self, logits: Tensor) -> Tensor:
        """Log-probabilities, of the logits' shape and type, as the last layer of a network."""
        rows = flatten(logits)
        # While TorchScript traces, sizes are tensors, which it warns of comparing.
        is_traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if not is_traced and rows.shape[1] != self.k:
            raise InputError(f"this calibrator was fitted on {self.k} classes; these logits have {rows.shape[1]}")
        found = self._calibrate(rows.to(working_type(rows.device)))
        target = self._buffers.get("target_prior")
        if target is not None:
            found = (found + (target / self.implied_prior).log()).log_softmax(1)
        return unflatten(found.to(logits.dtype) if logits.is_floating_point() else found, logits.shape)

    def predict_proba(self, logits: ArrayLike) -> Any:
        """Calibrated probabilities in float64, of the logits' shape: a tensor for a tensor, else a NumPy array."""
        given = as_logits(logits)
        refuse_probs(flatten(given), AS_LOGITS)
        with torch.no_grad():
            probs = self(given.to(working_type(given.device))).exp_()
        return probs if isinstance(logits, Tensor) else probs.cpu().numpy()

    @property
    def k(self) -> int:
        """The number of classes it was fitted on."""
        if self._k is None:
            raise NotFittedError(f"this {self.name} calibrator is not fitted yet: call fit(logits, labels) first")
        return self._k

    @property
    def n_parameters(self) -> int:
        """How many numbers it learnt."""
        return sum(buffer.numel() for buffer in self.learnt.values())

    @property
    def learnt(self) -> dict[str, Tensor]:
        """What it learnt, by name."""
        return {name: value for name, value in self.state_dict().items() if name.split(".")[-1] not in ABOUT_FIT}

    def set_params(self, **settings: Any) -> Self:
        """Change settings; the next `fit` uses them."""
        check_settings(self.name, settings_of(type(self)), settings)
        for name, value in settings.items():
            setattr(self, name, value)
        return self

    @classmethod
    def claims(cls) -> dict[str, Any]:
        """What the registry says about it; the tests verify it."""
        names = ("family", "preserves_argmax", "takes_objective", "takes_weights", "min_samples", "steady_from")
        return {name: getattr(cls, name) for name in names}

    def _keep(self, name: str, value: Tensor) -> None:
        """Keep something learnt."""
        self.register_buffer(name, value.detach().clone())
        if name == "n_classes":
            self._k = int(value)

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        """Take back what was saved; a method made of other calibrators rebuilds them here."""
        for name, tensor in tensors.items():
            self._keep(name, tensor)

    def _forget(self) -> None:
        self._buffers.clear()
        self._modules.clear()
        self._k = None
        self.class_names = None
        self.info = {}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move what was learnt with the network, but do not round it when the network is cast."""
        device = fn(torch.empty(0, dtype=torch.float32, device=self._device)).device

        def moved(tensor: Tensor) -> Tensor:
            wanted = working_type(device) if tensor.is_floating_point() else tensor.dtype
            # A device without float64 cannot receive it either: round before the move, widen after it.
            given = tensor.to(wanted) if wanted == torch.float32 else tensor
            found = fn(given)
            return (found if found.dtype == given.dtype else given.to(device)).to(wanted)

        self._device = device
        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *more: Any) -> None:
        """As any layer does, except that a calibrator of another shape, or not fitted, takes over what was saved."""
        given = {name.removeprefix(prefix): value for name, value in state_dict.items() if name.startswith(prefix)}
        if given and _shapes(given) != _shapes(self.state_dict()):
            device = self._device
            self._forget()
            self._restore(given)
            self.to(device)
        super()._load_from_state_dict(state_dict, prefix, *more)
        self._device = next((buffer.device for buffer in self.buffers()), self._device)
        self._apply(lambda tensor: tensor)  # a state that was cast is widened again
        if self._k is not None:
            self._k = int(self.n_classes)

    def _check_fit(self, logits: Tensor, labels: Tensor) -> None:
        n, k = logits.shape
        if k < 2:
            raise InputError(f"{self.name} needs at least two classes to fit; the logits have {k}")
        if n < self.min_samples:
            raise InputError(f"{self.name} needs at least {plural(self.min_samples, 'sample')} to fit; got {n}")
        if int(labels.min()) == int(labels.max()):
            raise InputError(
                f"{self.name} needs labels of at least two classes to fit; every label is class {int(labels[0])}. If "
                "you expected others, look at where the labels come from"
            )
        refuse_probs(logits, AS_LOGITS)

    @property
    def title(self) -> str:
        """Its name, and how many classes it was fitted on."""
        return f"{self.name} · {'not fitted yet' if self._k is None else f'{self._k} classes'}"

    def __repr__(self) -> str:
        given = (f"{name}={value!r}" for name, value in changed_settings(self).items())
        return f"{type(self).__name__}({', '.join(given)})" + ("" if self._k is None else f" for {self._k} classes")

    def _printed(self, width: int) -> Iterator[Any]:
        learnt = {name: value.tolist() for name, value in self.learnt.items()}
        yield from two_columns(self.title, {**changed_settings(self), **learnt, **self.info})

    def save(self, path: str | Path) -> None:
        """Write the fitted calibrator to one .safetensors file."""
        from temperance.calibrators.stored import save_calibrator  # here, because it imports this module

        save_calibrator(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Calibrator:
        """Read a calibrator of any method that `save` wrote."""
        from temperance.calibrators.stored import load_calibrator  # here, because it imports this module

        return load_calibrator(path)


CALIBRATORS: Registry[type[Calibrator]] = Registry("calibrator")

C = TypeVar("C", bound=type[Calibrator])


def calibrator(
    *,
    family: str,
    preserves_argmax: bool,
    takes_objective: bool = False,
    takes_weights: bool = False,
    min_samples: int = 1,
    steady_from: int = 1,
    name: str | None = None,
) -> Callable[[C], C]:
    """Register a calibrator with its claims.

    family           the page of the docs it belongs to
    preserves_argmax no prediction changes, on any logits
    takes_objective  `objective=` chooses what it minimises
    takes_weights    samples may have any weights (`_fit_weighted`); otherwise whole ones, by which they are repeated
    min_samples      it refuses to fit on fewer
    steady_from      it warns if there are fewer: on real predictions it then doubled the NLL in some draws
    """

    def register(cls: C) -> C:
        cls.name = name or plain_name(cls.__name__)
        cls.summary = first_line(cls.__doc__)
        cls.family = family
        cls.preserves_argmax = preserves_argmax
        cls.takes_objective = takes_objective
        cls.takes_weights = takes_weights
        cls.min_samples = min_samples
        cls.steady_from = steady_from
        CALIBRATORS.add(cls.name, cls)
        return cls

    return register


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def make_calibrator(name: str, **settings: Any) -> Calibrator:
    """A calibrator by its plain name, which may carry settings as on the command line; wrong ones are refused."""
    found: Calibrator = CALIBRATORS.make(name, **settings)
    found.check_settings()
    return found
