"""What a reader of a comparison should know besides the verdict: one sentence or two for each reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from temperance.calibrators import priors
from temperance.jobs.floor import Floored
from temperance.jobs.labels import CERTAIN, ENOUGH_LABELS, LabelCounts, one_class, one_label_outcome, one_outcome
from temperance.jobs.measuring import checked_batches
from temperance.jobs.statistics import OF_PIXELS
from temperance.jobs.verdict import as_class
from temperance.metrics.evidence import ENOUGH
from temperance.metrics.tally import Tally, tallied
from temperance.showing import percents

if TYPE_CHECKING:
    from temperance.jobs.comparison import Comparison

# A class is noted as more or less common in one part if its share there is this many times that in the other, by more
# than chance. Each part has at least this many samples of it by their mean share.
TIMES, EXPECTED = 1.5, 5


def notes(found: Comparison) -> tuple[str, ...]:
    """All notes, the most important first."""
    floored = Floored.of(found.test, calibrated=False)
    labels = LabelCounts.none(found.test.k)
    tallies: list[Tally] = []
    for _ in tallied(labels.seen(floored.counted(checked_batches(found.test), logits=True)), tallies):
        pass
    nll = found.baseline.measured["nll"].value
    zeros = (
        floored.note(nll, found.test.n, "label" if found.test.multilabel else found.test.row_name) if floored.n else ""
    )
    if zeros and found.test.from_logits:
        zeros += " `temperance evaluate` has no such floor for logits."
    pixels = OF_PIXELS if found.test.of_pixels else ""
    told = not found.test.has_weights and not found.test.multilabel
    about_labels = _one_class(found) or (labels.wrong(tallies[1], _names(found)) if told else "")
    at_bound = "" if about_labels else _at_bound(found)
    frequencies = "" if about_labels else _other_frequencies(found) or _imbalance(found)
    return tuple(filter(None, (zeros, about_labels, at_bound, _untold(found), frequencies, pixels, _slow(found))))


def _one_class(found: Comparison) -> str:
    """A sentence about parts whose labels are all of one class."""
    known = {"to fit on": found.fit.labels.aminmax(), "to measure on": found.test.labels.aminmax()}
    alone = {name: int(labels.min) for name, labels in known.items() if int(labels.min) == int(labels.max)}
    if not alone or found.test.n < ENOUGH_LABELS:
        return ""
    part, label = next(iter(alone.items()))
    both = list(alone.values()) == [label, label]
    of_what = "" if both else f" of the part {part}"
    if found.test.multilabel:
        return one_label_outcome(label, of_what)
    if found.test.one_score:
        return one_outcome(label, of_what)
    name = found.test.class_names[label] if found.test.class_names else str(label)
    return one_class(as_class(name), of_what)


def _at_bound(found: Comparison) -> str:
    """A sentence about logits that are too small, or too uneven, for any allowed temperature."""
    plain = next((each.fitted.info for each in found.ranked if each.fitted and each.label == "temperature"), {})
    return f"For temperature, {plain['caution']}." if plain.get("at_bound") else ""


def _slow(found: Comparison) -> str:
    """A sentence about methods that were left out."""
    if not found.left_out:
        return ""
    return (
        f"With {found.test.k:,} classes, these methods can take minutes each and are left out unless they are named: "
        f"{', '.join(found.left_out)}."
    )


def _untold(found: Comparison) -> str:
    """A sentence about right or wrong predictions that are too few to tell methods apart."""
    missing = found.baseline.evidence.missing
    if not found.any_fitted or found.tells_apart or not missing:
        return ""
    if found.test.multilabel:
        missing = f"labels that apply to {ENOUGH} samples and do not apply to {ENOUGH}, on average"
    return f"There are no intervals, and methods cannot be told apart: both need {missing}."


def _other_frequencies(found: Comparison) -> str:
    """A sentence about classes that are more or less common in the test part, and what to do.

    It names `auto`, not the recommended method: without a prior, a method that learns frequencies ranks too low here.
    """
    if _has_prior(found) or found.test.one_score or found.test.has_weights or found.test.of_pixels:
        return ""
    counts = torch.stack([torch.bincount(part.labels, minlength=part.k) for part in (found.fit, found.test)]).double()
    n = counts.sum(1, keepdim=True)
    shares, together = counts / n, counts.sum(0) / n.sum()
    change = (shares[0] - shares[1]).abs()
    deviation = (together * (1 - together) * (1 / n).sum()).sqrt()
    differ = (change > CERTAIN * deviation) & (shares.amax(0) >= TIMES * shares.amin(0))
    differ &= (together * n >= EXPECTED).all(0)
    if not differ.any():
        return ""
    most = int((change * differ).argmax())
    fit, test = percents(shares[:, most].tolist())
    n_others = int(differ.sum()) - 1
    others = f", and {n_others:,} other{'s differ' if n_others > 1 else ' differs'}, too" if n_others else ""
    prior = priors.UNIFORM if float(shares[1].max()) < TIMES * float(shares[1].min()) else "FILE"
    return (
        f"Class frequencies differ between the parts: {_names(found)[most]} is {fit} of the fit part and {test} of the "
        f"test part{others}. If those of the test part are the ones in use, give them as a prior, for example "
        f"temperance fit auto FIT -o CAL --prior {prior}."
    )


def _imbalance(found: Comparison) -> str:
    """A sentence about an imbalanced fit part and what to do, unless the recommended method has a prior."""
    imbalance = priors.imbalance_of(torch.bincount(found.fit.labels, found.fit.weights), _names(found))
    if not imbalance or _has_prior(found) or found.test.one_score:
        return ""
    name = "auto" if found.recommended is found.baseline else found.recommended.method.label
    return (
        f"The fit part is imbalanced ({imbalance}): if class frequencies in use differ, give them as a prior, "
        f"for example temperance fit {name} FIT -o CAL --prior {priors.UNIFORM}."
    )


def _names(found: Comparison) -> list[str]:
    """The classes as a sentence names them."""
    return [as_class(name) for name in found.fit.class_names or map(str, range(found.fit.k))]


def _has_prior(found: Comparison) -> bool:
    """Does the recommended method have a prior?"""
    return "prior" in found.recommended.method.settings
