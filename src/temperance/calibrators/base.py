"""The base class of calibrators: fitted on logits and labels, a calibrator turns logits into log-probabilities.

A method implements `_calibrate` and either `_fit` or `_fit_weighted`, and `_check_settings` where settings depend on
each other. It stores what it learns in float64 buffers, so a fitted calibrator moves, saves and loads like any other
layer and can be the last layer of a network. Casting that network (`.half()`, `.to(torch.bfloat16)`) leaves the buffers
in float64; they only follow it to another device.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Required, Self, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor

from temperance.arrays import ArrayLike, as_labels, as_logits, as_scores, flatten, refuse_probs, shape_of, unflatten
from temperance.calibrators import priors
from temperance.calibrators.buffers import Learnt
from temperance.calibrators.estimator import Estimator, names_of, numbered
from temperance.calibrators.fit_part import MOST_VALUES, FitPart
from temperance.calibrators.groups import known_groups, numbered_groups
from temperance.calibrators.weights import counted_rows, either, repeated
from temperance.errors import InputError, NotFittedError, TemperanceWarning, amount, plural
from temperance.numerics import working_type
from temperance.registry import Registry, registered
from temperance.settings import HasSettings, changed_settings, check_settings, settings_of
from temperance.showing import Shown, two_columns
from temperance.threads import one_thread

# The remedy when probabilities are passed as logits.
AS_LOGITS = "pass log-probabilities, numpy.log(probs)"

# What every calibrator stores about the fit part, besides what its method learns.
FIT_PART = tuple(field.name for field in fields(FitPart))
ABOUT_FIT = ("n_classes", *FIT_PART, "target_prior")

Prior = Literal["uniform", "same"] | list[float]


class Shared(TypedDict, total=False):
    """The settings that all calibrators share: those of `Calibrator`."""

    prior: Prior | None


class Calibrator(Estimator, Shown, HasSettings, Learnt):
    """Turns logits into calibrated probabilities.

    `fit(logits, labels)` learns from held-out predictions and forgets any earlier fit; `predict_proba(logits)` gives
    probabilities; called as a layer it gives log-probabilities in the type of its logits. Everything is computed in
    float64, or in float32 on a device without float64. Where the samples leave something undetermined, `fit` warns, and
    `info["caution"]` holds the warning.

    prior  class frequencies in use: "uniform", one number per class in proportion to its frequency, or "same" as in the
           fit part. Without it nothing is corrected, and `fit` warns if the samples are imbalanced
    """

    summary: ClassVar[str]
    family: ClassVar[str]
    preserves_argmax: ClassVar[bool]
    takes_objective: ClassVar[bool] = False
    takes_weights: ClassVar[bool] = False
    takes_groups: ClassVar[bool] = False
    scale_free: ClassVar[bool] = False
    min_samples: ClassVar[int] = 1
    steady_from: ClassVar[int] = 1
    most_classes: ClassVar[float] = math.inf

    implied_prior: Tensor
    target_prior: Tensor  # with a prior only

    def __init__(self, *, prior: Prior | None = None) -> None:
        super().__init__()
        self.prior = prior
        self.info: dict[str, Any] = {}

    # What a method implements.

    def _fit(self, logits: Tensor, labels: Tensor) -> None:
        """Learn from float64 logits (n, k) and int64 labels (n,); store what is learnt with `_keep`."""
        self._fit_weighted(logits, labels, None)

    def _fit_weighted(self, logits: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        """The same, where each row counts as many samples as its weight (n,); a method that `takes_weights` has this.

        Weights are positive and sum to the number of samples, so a method that needs n takes their sum.
        """
        raise NotImplementedError

    @property
    def _one_by_one(self) -> str:
        """The name of the method or objective that counts samples, and so needs whole weights; empty if none does."""
        return "" if self.takes_weights else self.name

    def _calibrate(self, logits: Tensor) -> Tensor:
        """Log-probabilities (n, k) of float64 logits (n, k)."""
        raise NotImplementedError

    def _fit_to_groups(self, logits: Tensor, labels: Tensor, weights: Tensor | None, groups: Tensor) -> None:
        """After `_fit`, learn from the numbers of each row's groups (n, c); a method that `takes_groups` has this."""
        raise NotImplementedError

    def _calibrate_groups(self, logits: Tensor, groups: Tensor) -> Tensor:
        """Log-probabilities of rows whose groups have these numbers (n, c), `groups.UNKNOWN` without one."""
        raise NotImplementedError

    # What users call.

    def fit(
        self,
        logits: ArrayLike,
        labels: ArrayLike,
        *,
        groups: ArrayLike | None = None,
        ignore_index: int | None = None,
        weights: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn from logits (n, k) or (n, k, *space) and labels that the network was not trained on.

        Labels are class numbers, or text: then the columns are the sorted classes, as in scikit-learn.
        `groups`, text or integers, are for methods that tell groups of samples apart: (n,), or (n, c) where a sample
        has a group in each of c columns.
        `weights` say how much each sample counts: a whole number w counts as w equal samples, 0 as none. If some are
        not whole, only their proportions matter, and together they count as (Σw)² / Σw² samples.
        `sample_weight` is scikit-learn's name for them.
        """
        self.check_settings()
        weights = either(weights, sample_weight)
        scores = as_scores(logits, "logits")
        home = scores.device
        exact = home if working_type(home) == torch.float64 else torch.device("cpu")
        # A fit is thousands of operations on blocks that stay in cache. Torch's threads wait for each other after each
        # one, which takes many times longer on a busy machine. Solvers share out blocks instead (`threads.in_parts`).
        with torch.no_grad(), one_thread(where=exact.type == "cpu"):
            given = as_logits(scores)
            names = names_of(labels, given.shape[1])
            truth = as_labels(numbered(labels, names), given, ignore_index=ignore_index).reshape(-1).to(exact)
            rows = flatten(given).to(exact).double()
            self._check_groups(groups)
            kept, counts = counted_rows(truth, ignore_index, weights, given)
            known, parts = ((), None) if groups is None else numbered_groups(groups, given.to(exact), kept)
            rows, truth = rows[kept], truth[kept]
            self._fit_rows(rows, truth, counts, parts)
            self.class_names, self.group_columns = names, known
            self._keep_reference(rows, truth, counts, parts)
        return self.set_prior(self.prior).to(home)._noted(torch.bincount(truth, counts, given.shape[1]))

    def _noted(self, counts: Tensor) -> Self:
        """After a fit to this many samples of each class: note absent ones, and warn of what should not be trusted."""
        absent = (counts == 0).nonzero().flatten().tolist()
        if absent:
            self.info["absent_classes"] = absent
        cautions = [self.info.get("caution"), priors.imbalance(counts) if self.prior is None else None]
        for caution in filter(None, cautions):
            # Without the method's name, so that Python shows it once if many methods are fitted to the same samples.
            warnings.warn(caution, TemperanceWarning, stacklevel=3)
        return self

    def _fit_rows(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> None:
        """Fit to checked float64 logits (n, k) and int64 labels (n,), without a warning."""
        if weights is not None and self._one_by_one:
            index = repeated(self._one_by_one, weights)
            logits, labels, weights = logits[index], labels[index], None
            groups = None if groups is None else groups[index]
        self._check_fit(logits, labels)
        self._forget()
        if weights is None:
            self._fit(logits, labels)
        else:
            self._fit_weighted(logits, labels, weights)
        if groups is not None:
            self._fit_to_groups(logits, labels, weights, groups)
        n = len(labels) if weights is None else float(weights.sum())
        if n < self.steady_from:
            says = f"with fewer than about {self.steady_from} samples {self.name} can double the NLL; got {amount(n)}"
            self.info.setdefault("caution", f"{says}. Fit on more samples, or use temperature or auto")
        self._keep("n_classes", torch.tensor(logits.shape[1], device=logits.device))

    @one_thread()  # also for many samples: its many small operations would wait for torch's threads
    def _keep_reference(
        self, logits: Tensor, labels: Tensor, weights: Tensor | None = None, groups: Tensor | None = None
    ) -> None:
        """Store what `set_prior` and `adapt` need to know about the fit part; of very many rows, a sample is enough."""
        some = slice(None, None, max(1, logits.numel() // MOST_VALUES))
        rows, counts = logits[some], None if weights is None else weights[some]
        calibrated = self._calibrated(rows, None if groups is None else groups[some])
        found = FitPart.of(rows, calibrated, labels[some], counts)
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

    def adapt(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> priors.PriorShift:
        """Estimate the class frequencies of predictions without labels, and correct for them.

        The result has an interval for each frequency and says whether the frequencies differ from those of the fit
        part. Only if they do is a correction applied. Otherwise an earlier prior is removed, or kept if there are too
        few predictions to tell. It warns if something else has changed too.
        """
        self._check_fit_part()
        given = as_logits(logits).to(self._device)
        rows, parts = flatten(given), self._known_groups(groups, given)
        rows = rows.to(working_type(rows.device))
        about = FitPart(*(self.get_buffer(name) for name in FIT_PART))
        with torch.no_grad():
            found = priors.estimate(self._calibrated(rows, parts), rows, about)
        if found.applied is not None or found.as_fitted:
            self.set_prior(found.applied)
        if found.other_shift:
            warnings.warn(found.about_rest, TemperanceWarning, stacklevel=2)
        return found

    def _check_fit_part(self) -> None:
        self.k  # noqa: B018  (raises if it is not fitted)
        if any(name not in self._buffers for name in FIT_PART):
            raise InputError(f"this {self.name} calibrator was saved without its class frequencies: fit it again")

    def forward(self, logits: Tensor, groups: Tensor | None = None) -> Tensor:
        """Log-probabilities, of the logits' shape and type, as the last layer of a network.

        groups  the place of each row's group in `group_names`, or −1, for methods that tell groups apart; (n,), or
                (n, c) after a fit to c columns
        """
        if logits.ndim < 2:
            raise InputError(f"logits must have shape (n, {self.k}) or (n, {self.k}, ...); got {shape_of(logits)}")
        rows = flatten(logits)
        # While TorchScript traces, sizes are tensors, and it warns when they are compared.
        is_traced = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if not is_traced and rows.shape[1] != self.k:
            raise InputError(f"this calibrator was fitted on {self.k} classes; these logits have {rows.shape[1]}")
        found = self._calibrated(rows.to(working_type(rows.device)), groups)
        target = self._buffers.get("target_prior")
        if target is not None:
            found = (found + (target / self.implied_prior).log()).log_softmax(1)
        return unflatten(found.to(logits.dtype) if logits.is_floating_point() else found, logits.shape)

    def _calibrated(self, rows: Tensor, groups: Tensor | None) -> Tensor:
        if groups is None:
            return self._calibrate(rows)
        return self._calibrate_groups(rows, groups[:, None] if groups.ndim == 1 else groups)

    def _check_groups(self, groups: ArrayLike | None) -> None:
        if groups is not None and not self.takes_groups:
            instead = f"Grouped(base={self.name!r}) tells them apart"
            raise InputError(f"{self.name} treats all groups of samples alike, so leave out groups; {instead}")

    def _known_groups(self, groups: ArrayLike | None, given: Tensor) -> Tensor | None:
        """The numbers of the groups of rows; they must be known where they were in the fit."""
        self._check_groups(groups)
        if groups is None and self.group_names:
            raise InputError(
                f"this {self.name} calibrator was fitted on {plural(len(self.group_names), 'group')} of samples: give "
                "the group of each sample here, too"
            )
        return known_groups(groups, self.group_columns, given) if groups is not None and self.group_columns else None

    def predict_proba(self, logits: ArrayLike, *, groups: ArrayLike | None = None) -> Any:
        """Calibrated probabilities in float64, of the logits' shape: a tensor for a tensor, else a NumPy array.

        groups  of the samples, (n,) or (n, c), for a method that was fitted with groups; those it does not know share
                one map
        """
        given = as_logits(logits)
        refuse_probs(flatten(given), AS_LOGITS)
        with torch.no_grad():
            probs = self(given.to(working_type(given.device)), self._known_groups(groups, given)).exp_()
        return probs if isinstance(logits, Tensor) else probs.cpu().numpy()

    def probs_of(self, logits: Tensor, groups: ArrayLike | None) -> Tensor:
        """`predict_proba` of rows that may have groups; only a method that tells them apart looks at them."""
        found: Tensor = self.predict_proba(logits, groups=groups if self.takes_groups else None)
        return found

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
        """What the registry says about it; the contract tests check it."""
        return {name: getattr(cls, name) for name in CalibratorClaims.__annotations__}

    def _check_fit(self, logits: Tensor, labels: Tensor) -> None:
        n, k = logits.shape
        if k < 2:
            raise InputError(f"{self.name} needs at least two classes to fit; the logits have {k}")
        if n < self.min_samples:
            raise InputError(f"{self.name} needs at least {plural(self.min_samples, 'sample')} to fit; got {n}")
        if int(labels.min()) == int(labels.max()):
            raise InputError(
                f"{self.name} needs labels of at least two classes to fit; every label is class {int(labels[0])}. If "
                "you expected others, check where the labels come from"
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


class CalibratorClaims(TypedDict, total=False):
    """What a calibrator claims.

    family           the page of the docs it belongs to
    preserves_argmax no prediction changes, on any logits
    takes_objective  `objective=` chooses what it minimises
    takes_weights    any sample weights will do (`_fit_weighted`); otherwise only whole ones, and samples are repeated
    takes_groups     it learns how groups of samples differ (`_fit_to_groups`)
    scale_free       logits times any number from 1 on give the same probabilities, if samples determine a temperature
    min_samples      it refuses to fit on fewer
    steady_from      it warns if there are fewer: on real predictions the NLL then doubled in some draws
    most_classes     with more, a fit can take minutes, so `compare` and `auto` leave it out unless it is named
    """

    family: Required[str]
    preserves_argmax: Required[bool]
    takes_objective: bool
    takes_weights: bool
    takes_groups: bool
    scale_free: bool
    min_samples: int
    steady_from: int
    most_classes: float


def calibrator(*, name: str | None = None, **claims: Unpack[CalibratorClaims]) -> Callable[[C], C]:
    """Register a calibrator with its claims."""
    return registered(CALIBRATORS, name, claims)


def make_calibrator(name: str, **settings: Any) -> Calibrator:
    """The calibrator of this name, which may carry settings as on the command line; invalid ones are refused."""
    found: Calibrator = CALIBRATORS.make(name, **settings)
    found.check_settings()
    return found
