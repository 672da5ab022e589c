"""When to abstain: the lowest confidence from which the error stays below a limit, with a stated probability.

Predictions below a threshold t are left to someone else. The error R(t) of the others on new samples is unknown; m of n
samples reach t, and e of these are wrong. For a fixed t, e is binomial given m, so P(Bin(m, risk) ≤ e) is a p-value of
R(t) ≥ risk. The thresholds are fixed before any sample is seen, so none is chosen for its luck. They are tested from
the highest down. The probability to be wrong, 1 − level, is shared among a few of them, the starts. A test that rejects
passes its share on to the next threshold, one that fails loses it (the fallback procedure of Wiens, 2003). So the
promise holds for all thresholds that are found, together: of all sets of samples that could have been drawn, at most
1 − level would give any threshold whose error is not below the risk.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temperance.arrays import ArrayLike
from temperance.calibrators.base import Calibrator
from temperance.errors import InputError, plural
from temperance.jobs.measuring import checked_batches
from temperance.jobs.results import Provenance, Tabular, as_json
from temperance.jobs.statistics import OF_PIXELS
from temperance.predictions.checks import Positive
from temperance.predictions.given import Set, as_predictions
from temperance.settings import OpenFraction, of_kind
from temperance.showing import listed, number_table, percent
from temperance.threads import one_thread

# From nearly certain down to 0, in steps of 0.05 in the log-odds; rounded, so that people can write them. Every
# thirtieth is a start.
LOG_ODDS = torch.arange(12, -4.01, -0.05, dtype=torch.float64)
THRESHOLDS = torch.cat([LOG_ODDS.sigmoid().mul(1e6).round() / 1e6, torch.zeros(1)])
STARTS = range(0, len(LOG_ODDS), 30)
RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass(frozen=True)
class Rule:
    """Abstain below a threshold. Without one that keeps the error below the risk, all but `risk` is NaN or 0.

    threshold  the lowest confidence of a prediction that is used
    coverage   the share of samples that reach it
    error      the share of these that are wrong, here
    kept       how many samples reach it
    """

    risk: float
    threshold: float
    coverage: float
    error: float
    kept: int

    @property
    def found(self) -> bool:
        """Is there such a threshold?"""
        return not math.isnan(self.threshold)


@dataclass(frozen=True, repr=False)
class Abstention(Tabular):
    """For each risk, the threshold below which to abstain, with the most predictions used."""

    rules: tuple[Rule, ...]
    level: float
    source: str
    n: int
    row_name: str
    notes: tuple[str, ...]
    provenance: Provenance

    @property
    def title(self) -> str:
        """The file's name and size."""
        return f"{Path(self.source).name} · {plural(self.n, self.row_name)}"

    @property
    def verdict(self) -> str:
        """What to do, in plain words."""
        found = [rule for rule in self.rules if rule.found]
        missing = [rule.risk for rule in self.rules if not rule.found]
        said = []
        if len(found) == 1:
            said.append(self._one(found[0]))
        elif found:
            said.append(
                f"On new {self.row_name}s like these, predictions at or above a threshold have an error below the "
                f"limit beside it, each with a probability of {self._sure}."
            )
        if missing:
            said.append(self._none(missing))
        return " ".join(said)

    @property
    def _sure(self) -> str:
        return f"{100 * self.level:g} %"

    def _one(self, rule: Rule) -> str:
        limit = f"is below {100 * rule.risk:g} % with a probability of {self._sure}."
        wrong = f"{percent(rule.error, 1)} of them are wrong."
        if not rule.threshold:
            return f"Use every prediction. On new {self.row_name}s like these, their error {limit} Here {wrong}"
        return (
            f"Abstain below a confidence of {rule.threshold:g}. On new {self.row_name}s like these, the error of the "
            f"others {limit} Here they are {percent(rule.coverage, 1)} of all {self.row_name}s, and {wrong}"
        )

    def _none(self, risks: Sequence[float]) -> str:
        """Which errors cannot be promised, and how many samples the largest of them takes."""
        needed = fewest(max(risks), self.level)
        takes = f"; {100 * max(risks):g} % takes at least {needed:,} {self.row_name}s" * (self.n < needed)
        errors = listed([f"{100 * risk:g} %" for risk in risks], "or")
        return (
            f"On these {self.row_name}s, no threshold can promise an error below {errors}{takes}. One may with more "
            f"{self.row_name}s, or if confidence told right from wrong better."
        )

    def to_json(self) -> str:
        """Everything as JSON; numbers that are not finite become null."""
        about = {"provenance": dataclasses.asdict(self.provenance), "level": self.level}
        return as_json({**about, "verdict": self.verdict, "notes": self.notes, "rules": self._records()})

    def _records(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(rule) for rule in self.rules]

    def _printed(self, width: int) -> Iterator[Any]:
        from rich.text import Text

        table = number_table("error below", "abstain below", "used", "wrong here", title=Text(self.title, style="bold"))
        for rule in self.rules:
            cells = [f"{rule.threshold:g}", percent(rule.coverage), percent(rule.error)] if rule.found else ["–"] * 3
            table.add_row(percent(rule.risk), *cells)
        yield table
        yield ""
        yield Text(self.verdict)
        for note in self.notes:
            yield Text(f"\n{note}")


def abstain(
    predictions: Set | ArrayLike,
    labels: ArrayLike | None = None,
    *,
    risk: float | Sequence[float] = RISKS,
    level: float = 0.95,
    calibrator: Calibrator | None = None,
    from_logits: bool = False,
    positive: Positive | None = None,
    normalise: bool = False,
    columns: Mapping[str, str] | None = None,
    ignore_index: int | None = None,
    answers: bool = False,
) -> Abstention:
    """The lowest confidence at which predictions can be used, so that their error on new samples stays below a limit.

    For each risk, the error of predictions at or above the threshold is below it with probability `level`, whatever the
    model and however well it is calibrated. The probability is that of drawing these samples: at most 1 − level of such
    draws would give a threshold whose error on new samples is not below the risk. The samples must be independent of
    each other, come from where new ones will come from, and not have been used to train the model or to fit the
    calibrator. The promise holds for each risk by itself.

    risk        the error that is accepted, or several
    level       the probability with which the promise holds
    calibrator  use the confidence that this fitted calibrator makes

    The other settings are those of `evaluate`.

    >>> from temperance.demo import demo_predictions
    >>> found = abstain(demo_predictions()[1], risk=0.05)
    >>> found.rules[0].error < 0.05
    True
    """
    risks = np.atleast_1d(risk).tolist()
    for name, value in (*(("risk", each) for each in risks), ("level", level)):
        of_kind(name, value, OpenFraction)
    if not risks:
        raise InputError("risk must be at least one number between 0 and 1")
    data = as_predictions(
        predictions,
        labels,
        from_logits=from_logits,
        positive=positive,
        normalise=normalise,
        columns=columns,
        ignore_index=ignore_index,
        answers=answers,
    )
    if data.multilabel:
        raise InputError("abstain is about predictions that are right or wrong, and these are scores of several labels")
    if data.has_weights:
        raise InputError(f"{data.subject} have weights, and the promise is for samples that count equally; remove them")
    with data.located(), one_thread(where=calibrator is None):
        blocks = checked_batches(data, calibrator=calibrator)
        kept, wrong = torch.stack([counts(batch.confidence.cpu(), batch.correct.cpu()) for batch in blocks]).sum(0)
    rules = tuple(_rule(each, level, kept, wrong) for each in risks)
    settings = {"risk": risks, "level": level, "calibrator": calibrator.name if calibrator else None}
    return Abstention(
        rules=rules,
        level=level,
        source=data.source,
        n=data.n,
        row_name=data.row_name,
        notes=(OF_PIXELS,) if data.of_pixels else (),
        provenance=Provenance.of({data.source: data.fingerprint}, settings, seed=0),
    )


def counts(confidence: Tensor, correct: Tensor) -> Tensor:
    """How many samples reach each of THRESHOLDS, and how many of these are wrong. (2, number of thresholds)"""
    highest = torch.searchsorted(-THRESHOLDS, -confidence.double())  # the place of the highest that each reaches
    each = (torch.bincount(places, minlength=len(THRESHOLDS)) for places in (highest, highest[~correct]))
    return torch.stack(list(each)).cumsum(1)


def _rule(risk: float, level: float, kept: Tensor, wrong: Tensor) -> Rule:
    """The lowest threshold whose test rejects that the error is too high."""
    from scipy.stats import binom

    share, allowed, lowest = (1 - level) / len(STARTS), 0.0, -1
    for i, p_value in enumerate(binom.cdf(wrong.numpy(), kept.numpy(), risk)):
        allowed += share * (i in STARTS)
        if allowed and p_value <= allowed:  # a p-value can round to 0
            lowest = i
        else:
            allowed = 0.0
    if lowest < 0:
        return Rule(risk, math.nan, math.nan, math.nan, 0)
    n_kept = int(kept[lowest])
    return Rule(risk, float(THRESHOLDS[lowest]), n_kept / int(kept[-1]), int(wrong[lowest]) / n_kept, n_kept)


def fewest(risk: float, level: float) -> int:
    """How many predictions without a mistake a promise takes."""
    return math.ceil(math.log((1 - level) / len(STARTS)) / math.log1p(-risk))
