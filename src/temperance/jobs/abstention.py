"""When to abstain: for each error that is accepted, the threshold to use, as a table and in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from temperance.arrays import ArrayLike
from temperance.calibrators.base import Calibrator
from temperance.errors import InputError, plural
from temperance.jobs.application import fitted_on_these
from temperance.jobs.measuring import batches_by_group, refuse_calibrated
from temperance.jobs.notes import group_name
from temperance.jobs.results import Provenance, Tabular, as_json, how_read
from temperance.jobs.statistics import OF_PIXELS
from temperance.jobs.thresholds import Rule, counts, curve_of, rule_for
from temperance.metrics.selective import RiskCoverage
from temperance.predictions import Predictions
from temperance.predictions.checks import Positive
from temperance.predictions.given import Set, as_predictions
from temperance.settings import OpenFraction, of_kind
from temperance.showing import listed, number_table, paragraphs, percent
from temperance.threads import one_thread

RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass(frozen=True, repr=False)
class Abstention(Tabular):
    """For each risk, and if asked for each group, the threshold below which to abstain, with the most predictions used.

    curves  the error at every threshold, for each group in the order of the rules
    """

    rules: tuple[Rule, ...]
    curves: tuple[RiskCoverage, ...] = field(compare=False)
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
    def by_group(self) -> bool:
        """Does each group have rules of its own?"""
        return bool(self.rules[0].group)

    @property
    def groups(self) -> list[tuple[Rule, ...]]:
        """The rules of each group, one for each risk; without groups, those of all samples."""
        risks = len(self.rules) // len(self.curves)
        return [self.rules[i : i + risks] for i in range(0, len(self.rules), risks)]

    @property
    def verdict(self) -> str:
        """What to do, in plain words."""
        if self.by_group:
            return self._of_groups()
        found = [rule for rule in self.rules if rule.found]
        missing = [rule for rule in self.rules if not rule.found]
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

    def _of_groups(self) -> str:
        missing = [rule for rule in self.rules if not rule.found]
        said = []
        if len(missing) < len(self.rules):
            said.append(
                f"On new {self.row_name}s like these, predictions at or above the threshold of their group have an "
                f"error below the limit beside it. For each limit, this holds for all groups at once with a "
                f"probability of {self._sure}: the groups share the other {100 * (1 - self.level):.3g} %."
            )
        if missing:
            groups = self.groups
            without = sum(not all(rule.found for rule in each) for each in groups)
            limits = "this limit" if len(groups[0]) == 1 else "at least one limit"
            said.append(
                f"{without:,} of {plural(len(groups), 'group')} {'lacks' if without == 1 else 'lack'} a threshold for "
                f"{limits}."
            )
            if any(rule.n < rule.needed for rule in missing):
                said.append(self._takes(missing))
            said.append(self._may_help)
        return " ".join(said)

    def _takes(self, missing: Sequence[Rule]) -> str:
        (lowest, needed), *others = sorted({rule.risk: rule.needed for rule in missing}.items())
        takes = [f"{needed:,} {self.row_name}s for an error below {100 * lowest:g} %"]
        takes += [f"{fewer:,} for one below {100 * risk:g} %" for risk, fewer in others]
        return f"Even without a mistake, a group needs at least {listed(takes)}."

    @property
    def _may_help(self) -> str:
        return f"More {self.row_name}s may give one, and so may a confidence that tells right from wrong better."

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

    def _none(self, rules: Sequence[Rule]) -> str:
        """Which errors cannot be promised, and how many samples the largest of them takes."""
        most = max(rules, key=lambda rule: rule.risk)
        takes = f"; {100 * most.risk:g} % takes at least {most.needed:,} {self.row_name}s" * (self.n < most.needed)
        errors = listed([f"{100 * rule.risk:g} %" for rule in rules], "or")
        return f"On these {self.row_name}s, no threshold can promise an error below {errors}{takes}. {self._may_help}"

    def to_json(self) -> str:
        """Everything as JSON; numbers that are not finite become null."""
        about = {"provenance": dataclasses.asdict(self.provenance), "level": self.level}
        return as_json({**about, "verdict": self.verdict, "notes": self.notes, "rules": self._records()})

    def _records(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(rule) for rule in self.rules]

    def _printed(self, width: int) -> Iterator[Any]:
        from rich.text import Text

        numbers = ("error below", "abstain below", "used", "wrong here")
        first, *rest = ("group", f"{self.row_name}s", *numbers, "why none") if self.by_group else numbers
        table = number_table(first, *rest, title=Text(self.title, style="bold"))
        for rule in self.rules:
            cells = [f"{rule.threshold:g}", percent(rule.coverage), percent(rule.error)] if rule.found else ["–"] * 3
            group = [Text(rule.group), Text(f"{rule.n:,}")] if self.by_group else []
            why = [why_none(rule)] if self.by_group else []
            table.add_row(*group, percent(rule.risk), *cells, *why, end_section=rule.risk == self.rules[-1].risk)
        yield table
        yield from paragraphs(self.verdict, *self.notes)


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
    by_group: bool = False,
) -> Abstention:
    """The lowest confidence at which predictions can be used, so that their error on new samples stays below a limit.

    For each risk, the error of predictions at or above the threshold is below it with probability `level`, whatever the
    model and however well it is calibrated. The probability is that of drawing these samples: at most 1 − level of such
    draws would give a threshold whose error on new samples is not below the risk. The samples must be independent of
    each other, come from where new ones will come from, and not have been used to train the model or to fit the
    calibrator. The promise holds for each risk by itself.

    With `by_group`, each group of the predictions has a threshold of its own. The groups share 1 − level equally, so
    with probability `level` the promise holds for all of them at once.

    risk        the error that is accepted, or several
    level       the probability with which the promise holds
    calibrator  use the confidence that this fitted calibrator makes
    by_group    a threshold for each group

    The other settings are those of `evaluate`.

    >>> from temperance.demo import demo_predictions
    >>> found = abstain(demo_predictions()[1], risk=0.05)
    >>> found.rules[0].error < 0.05
    True
    """
    risks = list(dict.fromkeys(np.ravel(risk).tolist()))
    for name, value in (*(("risk", each) for each in risks), ("level", level)):
        of_kind(name, value, OpenFraction)
    of_kind("calibrator", calibrator, Calibrator | None)
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
    data.need_one_label()
    if data.has_weights:
        raise InputError(f"{data.subject} have weights, and the promise is for samples that count equally; remove them")
    if calibrator is not None:
        refuse_calibrated(data)
    counted = _counted(data, calibrator, by_group=by_group)
    if known := fitted_on_these(calibrator, data):
        raise InputError(f"{known}, and the promise is for samples that are new to it; give others")
    allowed = (1 - level) / len(counted)
    made_by = calibrator.name if calibrator else data.calibrated_by
    settings = {"risk": risks, "level": level, "by_group": by_group, "n": data.n, "k": data.k}
    return Abstention(
        rules=tuple(
            rule_for(each, risk, allowed, group_name(group)) for group, each in counted.items() for risk in risks
        ),
        curves=tuple(curve_of(each) for each in counted.values()),
        level=level,
        source=data.source,
        n=data.n,
        row_name=data.row_name,
        notes=(OF_PIXELS,) if data.of_pixels else (),
        provenance=Provenance.of({data.source: data.fingerprint}, settings | how_read(data, made_by), seed=0),
    )


def _counted(data: Predictions, calibrator: Calibrator | None, *, by_group: bool) -> dict[str | None, Tensor]:
    """For each group, or all samples under None: how many reach each threshold, and how many of these are wrong."""
    if by_group:
        data.need_groups()
    found: dict[str | None, Tensor] = {}
    with data.located(), one_thread(where=calibrator is None):
        for group, batch in batches_by_group(data, by_group=by_group, calibrator=calibrator):
            if by_group and group is None:
                continue  # these rows come again, each with its group
            more = counts(batch.confidence.cpu(), batch.correct.cpu())
            found[group] = found[group] + more if group in found else more
    return dict(sorted(found.items(), key=lambda item: item[0] or ""))


def why_none(rule: Rule) -> str:
    """Why a rule has no threshold, in a few words; empty where it has one."""
    if rule.found:
        return ""
    return f"takes at least {rule.needed:,}" if rule.n < rule.needed else "not shown by these"
