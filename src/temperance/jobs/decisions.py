"""Decisions with costs: the cheapest one for each sample, what it costs, and what calibration saves."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from temperance.arrays import ArrayLike
from temperance.calibrators.base import Calibrator, make_calibrator
from temperance.errors import InputError, TemperanceWarning, plural
from temperance.jobs import spending
from temperance.jobs.application import apply, fit, fitted_on_these
from temperance.jobs.costs import Costs, CostsLike, costs_for
from temperance.jobs.cross_fitting import cross_fitted
from temperance.jobs.measuring import refuse_calibrated
from temperance.jobs.outcomes import LEVEL, SIGNIFICANT
from temperance.jobs.policies import DecisionCurve, Policy, Saving, decision_curve, measured, saved, thresholds_told
from temperance.jobs.results import Provenance, Tabular, as_json, how_read
from temperance.jobs.sides import own_parts
from temperance.jobs.spending import capital
from temperance.jobs.statistics import OF_PIXELS
from temperance.metrics.gain import holm
from temperance.predictions import Predictions
from temperance.predictions.checks import Positive, excerpt
from temperance.predictions.given import Set, as_predictions
from temperance.progress import Progress, listening, no_progress
from temperance.settings import Seed, of_kind
from temperance.showing import number_table, paragraphs, percent

FOLDS = 5
MANY, FEW_FOLDS = 100_000, 2  # with so many samples half of them are enough to fit on
MOST_LISTED = 10  # decisions in the terminal
MOST_DIGITS = 12  # decimals of a cost
NOTHING = 1e-6  # a cost that is less is shown as zero, in units of the others


class Calibrated(NamedTuple):
    """Calibrated probabilities, the name of their calibrator, and how they were made, in words."""

    probs: Tensor
    name: str
    how: str


@dataclass(frozen=True, repr=False)
class Decisions(Tabular):
    """What it costs to decide by probabilities, before and after calibration.

    constant       the best single decision for all samples, in hindsight
    most_probable  the most probable class; None if not every class has a decision
    given          the decision with the least expected cost, by the probabilities as they are
    calibrated     the same by calibrated ones; None if they were calibrated already, or if nothing can be fitted
    saving         what calibration saves: `given` minus `calibrated`
    helps          what `given` and `calibrated` save over `constant`
    curve          for two classes, what other thresholds would bring
    thresholds     for two classes, where the decision changes, with enough digits to decide these samples alike
    how            how the probabilities were calibrated, in words
    """

    costs: Costs
    constant: Policy
    most_probable: Policy | None
    given: Policy
    calibrated: Policy | None
    saving: Saving | None
    helps: tuple[Saving, ...]
    curve: DecisionCurve | None
    thresholds: tuple[str, ...]
    how: str
    answers: bool
    source: str
    n: int
    row_name: str
    notes: tuple[str, ...]
    provenance: Provenance

    @property
    def title(self) -> str:
        """The file's name and size."""
        classes = "" if self.answers else f" · {len(self.costs.classes):,} classes"
        return f"{Path(self.source).name} · {plural(self.n, self.row_name)}{classes}"

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Every way to decide that was measured."""
        found = (self.constant, self.most_probable, self.given, self.calibrated)
        return tuple(policy for policy in found if policy is not None)

    @property
    def by_probabilities(self) -> tuple[Policy, ...]:
        """Those that decide by the least expected cost, before and after calibration."""
        return (self.given,) if self.calibrated is None else (self.given, self.calibrated)

    @property
    def model_helps(self) -> bool:
        """Is deciding by these probabilities, or by calibrated ones, cheaper than the best single decision?"""
        p_values = holm([each.p_value for each in self.helps])
        return any(p < SIGNIFICANT and each.value > 0 for p, each in zip(p_values, self.helps, strict=True))

    @property
    def verdict(self) -> str:
        """What to do and what it costs, in plain words."""
        return spending.verdict(self)

    def money(self, value: float) -> str:
        """A cost with as many decimals as the costs and their uncertainty deserve.

        They are the same for all costs of this result, but for one that would otherwise look like nothing.
        """
        by = self.given if self.saving is None or not self.saving.changed else self.saving
        unit = min((size for size in (by.high - by.low, abs(self.given.cost)) if size > 0), default=1.0)
        fewest = max(0, 1 - math.floor(math.log10(unit)))
        digits = next((enough for enough in range(fewest, fewest + 3) if self._adds_up(enough)), fewest)
        if abs(value) > NOTHING * unit:
            digits = max(digits, -math.floor(math.log10(abs(value))))
        digits = min(MOST_DIGITS, digits)
        return f"{round(value, digits) + 0.0:,.{digits}f}"

    def _adds_up(self, digits: int) -> bool:
        """With this many decimals, is the saving the difference of the two costs?"""
        if self.calibrated is None or self.saving is None:
            return True
        before, after, saved = (
            round(each, digits) for each in (self.given.cost, self.calibrated.cost, self.saving.value)
        )
        return round(before - after, digits) == saved

    def to_json(self) -> str:
        """Everything as JSON; numbers that are not finite become null."""
        costs = self.costs
        return as_json(
            {
                "provenance": dataclasses.asdict(self.provenance),
                "verdict": self.verdict,
                "notes": self.notes,
                "costs": {"classes": costs.classes, "decisions": costs.decisions, "values": costs.values.tolist()},
                "rule": [part._asdict() | {"decision": costs.decisions[part.decision]} for part in costs.rule],
                "policies": [dataclasses.asdict(policy) for policy in self.policies],
                "saving": None if self.saving is None else dataclasses.asdict(self.saving),
                "level": LEVEL,
                "model_helps": self.model_helps,
                "how": self.how,
                "curve": None if self.curve is None else dataclasses.asdict(self.curve),
            }
        )

    def _records(self) -> list[dict[str, Any]]:
        """A row for each policy, and one for each decision, with the mean cost of the samples that it is taken for."""
        found = []
        for policy in self.policies:
            found.append(_record(policy.name, "", 1.0, policy.cost, policy.low, policy.high))
            for name, share, mean in zip(self.costs.decisions, policy.shares, policy.means, strict=True):
                found.append(_record(policy.name, name, share, mean))
        return found

    def taken(self, most: int) -> tuple[int, ...]:
        """All decisions, or if there are more than `most` those that are taken most often, these first."""
        if len(self.costs.decisions) <= most:
            return tuple(range(len(self.costs.decisions)))
        shares = torch.tensor([policy.shares for policy in self.by_probabilities]).amax(0)
        return tuple(shares.argsort(descending=True, stable=True)[:most].tolist())

    def taken_cells(self, decision: int) -> list[str]:
        """How often a decision is taken, before and after calibration, and the mean cost each time."""
        policies = self.by_probabilities
        means = [policy.means[decision] for policy in policies]
        return [percent(policy.shares[decision], 1) for policy in policies] + [
            "–" if math.isnan(mean) else self.money(mean) for mean in means
        ]

    @property
    def taken_columns(self) -> tuple[str, ...]:
        """What `taken_cells` are."""
        if self.calibrated is None:
            return ("taken", "mean cost")
        return ("taken", "calibrated", "mean cost", "calibrated")

    def _printed(self, width: int) -> Iterator[Any]:
        from rich.text import Text

        table = number_table(
            "decided by", f"cost per {self.row_name}", "95 % interval", title=Text(self.title, style="bold")
        )
        for policy in self.policies:
            interval = f"{self.money(policy.low)} … {self.money(policy.high)}"
            table.add_row(Text(policy.name), self.money(policy.cost), interval)
        yield table
        listed = self.taken(MOST_LISTED)
        taken = number_table("decision", *self.taken_columns)
        for decision in listed:
            taken.add_row(Text(self.costs.decisions[decision]), *self.taken_cells(decision))
        yield taken
        if len(listed) < len(self.costs.decisions):
            rest = f"The {len(listed)} decisions that are taken most often, of {len(self.costs.decisions):,}."
            yield Text(rest, style="dim")
        yield from paragraphs(self.verdict)
        if self.how:
            yield Text(f"\n{capital(self.how)}.", style="dim")
        yield from paragraphs(*self.notes)


def decide(
    predictions: Set | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    costs: CostsLike | None = None,
    false_alarm: float | None = None,
    miss: float | None = None,
    abstain: float | None = None,
    calibrator: Calibrator | None = None,
    method: str | None = None,
    from_logits: bool = False,
    positive: Positive | None = None,
    normalise: bool = False,
    columns: Mapping[str, str] | None = None,
    ignore_index: int | None = None,
    answers: bool = False,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Decisions:
    """The decision with the least expected cost for each sample, what that costs here, and what calibration saves.

    Four ways to decide are measured: the best single decision for all samples, the most probable class, the least
    expected cost Σ_j p_j C[j, d] by the probabilities as they are, and the same by calibrated ones. A calibrator is
    never measured on samples it was fitted on: of a file with val and test parts it is fitted on the first and measured
    on the second, otherwise each sample is calibrated by a fit on other samples. Intervals and the claim of a saving
    rest on Gaffke's test, which holds for few samples; it treats fits that share samples as independent.

    costs        a row for each true class, a column for each decision: an array, a dictionary {decision: {class:
                 cost}}, or a .csv file with a header of decisions; negative costs are gains
    false_alarm  two classes, in place of costs: what it costs to act if the class is not the second; for answers, to
                 use a wrong one
    miss         what it costs not to act if the class is the second
    abstain      what it costs to leave a sample to someone else
    calibrator   a fitted calibrator whose saving is measured
    method       the calibrator that is fitted otherwise; by default "auto"

    The other settings are those of `evaluate`.

    >>> found = decide([[0.8, 0.2], [0.4, 0.6]] * 50, [0, 0, 1, 1] * 25, false_alarm=1, miss=4, method="temperature")
    >>> found.costs.rule[1].low
    0.2
    """
    of_kind("seed", seed, Seed)
    of_kind("calibrator", calibrator, Calibrator | None)
    if calibrator is not None and method is not None:
        raise InputError(
            "calibrator is one that is fitted already, method one to fit; give one of them",
            flags={"calibrator is": "--calibrator is", "method one": "--method one"},
        )
    method = method or "auto"
    make_calibrator(method)  # a wrong name is refused before anything is read
    how: dict[str, Any] = {
        "positive": positive,
        "normalise": normalise,
        "columns": columns,
        "ignore_index": ignore_index,
        "answers": answers,
    }
    data = as_predictions(predictions, labels, from_logits=from_logits, **how)
    data.need_one_label()
    if data.has_weights:
        raise InputError(f"{data.subject} have weights, and the costs are of samples that count equally; remove them")
    prices = costs_for(data, costs, false_alarm, miss, abstain)
    before, truth = _probs(data), data.labels.cpu()
    after: Calibrated | None = None
    notes = [OF_PIXELS] if data.of_pixels else []
    with listening(progress):
        if calibrator is not None:
            refuse_calibrated(data)
            if known := fitted_on_these(calibrator, data):
                raise InputError(
                    f"{known}, so what it saves here says little; give others, or leave out the calibrator, and each "
                    f"{data.row_name} is calibrated by a fit on others",
                    flags={"the calibrator, and": "--calibrator, and"},
                )
            name = calibrator.name
            after = Calibrated(apply(calibrator, data).scores, name, f"calibrated by {name}, as it was fitted before")
        elif data.calibrated_by is not None:
            notes.append(
                f"These probabilities were calibrated by {data.calibrated_by}, so they are not calibrated again."
            )
        elif isinstance(predictions, str | Path) and data.other_split is not None:
            val, _, words = own_parts(predictions, **how)
            probs = apply(fit(make_calibrator(method), val), data).scores
            after = Calibrated(probs, method, f"calibrated by {method}, {words}")
        elif why := _why_no_fit(data, truth):
            notes.append(why)
        else:
            probs = _cross_fitted(data, method, seed).to(before.dtype)
            what = "image" if data.of_pixels else data.row_name
            after = Calibrated(probs, method, f"calibrated by {method}, each {what} by a fit on others")
    return _decided(data, prices, before, after, truth, notes, seed)


def _probs(data: Predictions) -> Tensor:
    """The probabilities as they are, checked. (n, k)"""
    logits = data.logits()
    return logits.softmax(1) if data.from_logits else data.scores


def _why_no_fit(data: Predictions, labels: Tensor) -> str:
    """Why no calibrator can be fitted to some of the samples and measured on others; empty if one can be."""
    if bool((labels == labels[:1]).all()):
        return f"There is one label in all of these {data.row_name}s, so nothing can be fitted to them."
    if data.of_pixels and not bool(data.samples_of_rows().any()):
        return "One image has no others to fit on, so its probabilities are not calibrated."
    return ""


def _cross_fitted(data: Predictions, method: str, seed: int) -> Tensor:
    folds = FEW_FOLDS if data.n > MANY else FOLDS
    with data.located(), warnings.catch_warnings():
        # Too few samples to learn from make calibration save less, which is measured.
        warnings.simplefilter("ignore", TemperanceWarning)
        images = data.samples_of_rows() if data.of_pixels else None
        return cross_fitted(method, data.logits().double(), data.labels, images=images, folds=folds, seed=seed)


def _decided(
    data: Predictions,
    costs: Costs,
    before: Tensor,
    after: Calibrated | None,
    labels: Tensor,
    notes: list[str],
    seed: int,
) -> Decisions:
    """Every way to decide, measured."""
    totals = torch.bincount(labels, minlength=data.k).double() @ costs.values
    totals[costs.dominated] = torch.inf
    best = int(totals.argmin())
    only = torch.arange(len(costs.decisions)) == best
    constant = torch.full_like(labels, best)
    by_given, given = costs.cheapest(before), "these probabilities"
    probs, helps = {given: before}, [saved(constant, by_given, labels, costs)]
    most_probable = calibrated = saving = None
    if costs.of_class is not None:
        of_class = torch.tensor(costs.of_class)
        chosen = of_class[torch.from_numpy(before.cpu().numpy().argmax(1))]
        among = torch.zeros_like(only).index_fill(0, of_class, 1)
        most_probable = measured("most probable class", chosen, labels, costs, among)
    if after is not None:
        by_calibrated, label = costs.cheapest(after.probs), f"calibrated by {after.name}"
        calibrated = measured(label, by_calibrated, labels, costs, costs.live)
        saving = saved(by_given, by_calibrated, labels, costs)
        helps.append(saved(constant, by_calibrated, labels, costs))
        probs[label] = after.probs
    if costs.never:
        notes.append(
            f"Never taken: {excerpt(costs.never)}. Whatever the probabilities, another decision costs no more."
        )
    return Decisions(
        costs=costs,
        constant=measured(costs.always(best), constant, labels, costs, only),
        most_probable=most_probable,
        given=measured(given, by_given, labels, costs, costs.live),
        calibrated=calibrated,
        saving=saving,
        helps=tuple(helps),
        curve=decision_curve(probs, labels, costs) if data.k == 2 else None,
        thresholds=thresholds_told(costs, probs.values()),
        how=after.how if after else "",
        answers=data.answers,
        source=data.source,
        n=data.n,
        row_name=data.row_name,
        notes=tuple(notes),
        provenance=Provenance.of(
            {data.source: data.fingerprint},
            {"calibrator": after and after.name, "n": data.n, "k": data.k} | how_read(data, data.calibrated_by),
            seed=seed,
        ),
    )


def _record(
    policy: str, decision: str, share: float, cost: float, low: float = math.nan, high: float = math.nan
) -> dict[str, Any]:
    return {"policy": policy, "decision": decision, "share": share, "cost": cost, "low": low, "high": high}
