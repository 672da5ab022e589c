"""Classes that are not as common in use as in the fit part: python -m benchmarks.quality.shift FOLDERS --out FILE

`--study told`: sets whose val part is imbalanced and whose test part is not, or the other way round. Every method is
fitted to the val part and measured on the test part, without a prior, with the uniform one, and adapted to the test
part's logits without their labels.

`--study estimated`: `auto` is fitted to the fit part of each set. Of its test part 20 samples are drawn with each kind
of shift, and the class frequencies of each are estimated from its logits alone. The NLL is that of the same samples
before and after adapting to them:

none     the classes as common as in the whole set
classes  frequencies drawn at random (a flat Dirichlet distribution): the only kind that EM knows
hard     of the surer half of the predictions only every second
noisy    the logits times 0.7, with noise: as for inputs of bad quality

`--study few`: how many predictions it takes. Each draw halves all samples of a set anew, fits to one half, and adapts
to a few of the other half, without a shift of the classes and with one, so that a false alarm is one of the method and
not of an unlucky half. The NLL is that of the same few before and after.

One JSON line for each; lines that are in the file already are not run again. Nothing is fitted to or chosen by a test
part's labels.
"""

import warnings
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import torch
from rich.progress import track
from torch import Tensor

from benchmarks.quality.data import fit_and_test, sets
from benchmarks.quality.table import Results, Row, arguments, table
from temperance.calibrators import CALIBRATORS, Calibrator, make_calibrator
from temperance.calibrators.priors import PriorShift
from temperance.errors import TemperanceWarning
from temperance.metrics import accuracy, ece, nll

DRAWS, ROWS, FEWEST = 20, 2000, 100
KINDS = ("none", "classes", "hard", "noisy")
FEW = (20, 100, 300, 1000)
FEW_METHODS = ("temperature", "structured-vector")
GROUPS = {"CIFAR-10 and Fashion-MNIST": ("c10_", "fmnist"), "CIFAR-100": ("c100_",), "language models": ("",)}


def told(name: str, path: Path, done: set[str]) -> list[Row]:
    """What a prior does to each method on one set."""
    fit_z, fit_y, test_z, test_y = fit_and_test(path)
    rows = []
    for method in CALIBRATORS.names:
        if method in done:
            continue
        found = make_calibrator(method).fit(fit_z, fit_y)
        for prior in ("none", "uniform", "adapted"):
            found.set_prior("uniform" if prior == "uniform" else None)
            if prior == "adapted":
                found.adapt(test_z)
            probs = found.predict_proba(test_z)
            measured = {"nll": nll(probs, test_y), "ece": ece(probs, test_y), "accuracy": accuracy(probs, test_y)}
            rows.append({"set": name, "method": method, "prior": prior, **_rounded(measured)})
    return rows


def estimated(name: str, path: Path, done: set[str]) -> list[Row]:
    """How well frequencies are estimated on one set, and what the tests say."""
    if done:
        return []
    fit_z, fit_y, test_z, test_y = fit_and_test(path)
    found = make_calibrator("auto").fit(fit_z, fit_y)
    together = torch.bincount(torch.cat([fit_y, test_y]), minlength=fit_z.shape[1]).double()
    rows = []
    for kind in KINDS:
        tried = [_estimate(found, kind, test_z, test_y, together / together.sum(), draw) for draw in range(DRAWS)]
        large = [each for each in tried if each]
        mean = {key: fmean(each[key] for each in large) for key in large[0]}
        rows.append({"set": name, "method": "auto", "shift": kind, "draws": len(large), **_rounded(mean)})
    return rows


def _estimate(
    found: Calibrator, kind: str, logits: Tensor, labels: Tensor, frequencies: Tensor, draw: int
) -> dict[str, float]:
    """One sample with a kind of shift: its size, the error of the frequencies, and what intervals and tests say."""
    generator = torch.Generator().manual_seed(draw)
    k = logits.shape[1]
    if kind == "classes":
        exponential = -torch.rand(k, generator=generator, dtype=torch.float64).clamp_min(1e-12).log()
        frequencies = frequencies * exponential
        frequencies = frequencies / frequencies.sum()
    weights = frequencies / torch.bincount(labels, minlength=k).clamp_min(1)
    keep = (weights / weights.max())[labels]
    if kind == "hard":
        confidence = logits.softmax(1).amax(1)
        keep = torch.where(confidence > confidence.median(), keep / 2, keep)
    drawn = torch.rand(len(labels), generator=generator, dtype=torch.float64) < keep
    order = torch.randperm(int(drawn.sum()), generator=generator)[:ROWS]
    rows, truth = logits[drawn][order], labels[drawn][order]
    if len(rows) < FEWEST:
        return {}
    if kind == "noisy":
        rows = 0.7 * rows + 0.3 * logits.std() * torch.randn(rows.shape, generator=generator, dtype=torch.float64)
    shift, said_and_done = _adapted(found, rows, truth)
    return {
        "n": shift.n,
        "error": float((shift.prior - frequencies).abs().mean()),
        "covered": float(((shift.low <= frequencies) & (frequencies <= shift.high)).double().mean()),
        **said_and_done,
    }


def few(name: str, path: Path, done: set[str]) -> list[Row]:
    """What adapting to a few predictions of one set says and does."""
    fit_z, fit_y, test_z, test_y = fit_and_test(path)
    logits, labels = torch.cat([fit_z, test_z]), torch.cat([fit_y, test_y])
    half, k = len(labels) // 2, logits.shape[1]
    rows = []
    for method in (each for each in FEW_METHODS if each not in done):
        tried: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
        for draw in range(DRAWS):
            generator = torch.Generator().manual_seed(draw)
            order = torch.randperm(len(labels), generator=generator)
            found = make_calibrator(method).fit(logits[order[:half]], labels[order[:half]])
            rest = order[half:]
            exponential = -torch.rand(k, generator=generator, dtype=torch.float64).clamp_min(1e-12).log()
            keep = torch.rand(len(rest), generator=generator, dtype=torch.float64) < exponential[labels[rest]] / 3
            for kind, some in (("none", rest), ("classes", rest[keep])):
                for n in (n for n in FEW if n <= len(some)):
                    tried[kind, n].append(_adapted(found, logits[some[:n]], labels[some[:n]])[1])
        for (kind, n), each in tried.items():
            mean = {key: fmean(one[key] for one in each) for key in each[0]}
            rows.append({"set": name, "method": method, "shift": kind, "draws": len(each), "n": n, **_rounded(mean)})
    return rows


def _adapted(found: Calibrator, logits: Tensor, labels: Tensor) -> tuple[PriorShift, dict[str, float]]:
    """What adapting to some predictions finds; what its tests say, and the NLL before and after."""
    before = nll(found.set_prior(None).predict_proba(logits), labels)
    shift = found.adapt(logits)
    after = nll(found.predict_proba(logits), labels)
    said = {"shifted": float(shift.shifted), "other": float(shift.other_shift)}
    return shift, said | {"before": before, "after": after}


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}


STUDIES = {"told": told, "estimated": estimated, "few": few}


def run(folders: list[Path], out: Path, study: str) -> None:
    """Measure what is not in the file yet."""
    results = Results(out)
    warnings.simplefilter("ignore", TemperanceWarning)
    for name, path in track(list(sets(*folders)), description="sets"):
        done = {row["method"] for row in results.rows if (row["study"], row["set"]) == (study, name)}
        for row in STUDIES[study](name, path, done):
            results.add({"study": study, **row, "seed": 0})


def told_markdown(rows: list[Row]) -> str:
    """Mean NLL and ECE of each method over the sets, lowest NLL with the uniform prior first."""
    by_method: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["study"] == "told":
            by_method[row["method"]][row["prior"]].append(row)
    priors, lines = ("none", "uniform", "adapted"), []
    for method, found in sorted(by_method.items(), key=lambda each: fmean(r["nll"] for r in each[1]["uniform"])):
        cells = [method]
        for prior in priors:
            nll, ece = (fmean(row[metric] for row in found[prior]) for metric in ("nll", "ece"))
            cells += [f"{nll:.4f}", f"{100 * ece:.2f} %"]
        lines.append(cells)
    return table(["method", *(f"{prior} {metric}" for prior in priors for metric in ("NLL", "ECE"))], lines)


def estimated_markdown(rows: list[Row]) -> str:
    """For each kind of shift and group of sets: the mean over draws and sets."""
    by_case: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["study"] == "estimated":
            group = next(name for name, starts in GROUPS.items() if row["set"].startswith(starts))
            by_case[row["shift"], group].append(row)
    measured = ["error of a frequency", "in its interval", "classes changed", "other shift", "NLL"]
    lines = []
    for (kind, group), found in sorted(by_case.items(), key=lambda each: KINDS.index(each[0][0])):
        n, error, covered, shifted, other, before, after = (
            fmean(row[key] for row in found) for key in ("n", "error", "covered", "shifted", "other", "before", "after")
        )
        shares = [f"{100 * error:.2f} %", f"{100 * covered:.0f} %", f"{100 * shifted:.1f} %", f"{100 * other:.1f} %"]
        lines.append([kind, f"{len(found)} {group}", f"{n:,.0f}", *shares, f"{before:.3f} → {after:.3f}"])
    return table(["shift", "sets", "predictions", *measured], lines)


def few_markdown(rows: list[Row]) -> str:
    """For each kind of shift, group of sets and number of predictions: the mean over draws and sets."""
    by_case: dict[tuple[str, str, int], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["study"] == "few":
            group = next(name for name, starts in GROUPS.items() if row["set"].startswith(starts))
            by_case[row["shift"], group, row["n"]][row["method"]].append(row)
    methods = [method for method in FEW_METHODS if any(method in found for found in by_case.values())]
    columns = (column for method in methods for column in (f"{method}: changed", "other shift", "NLL"))
    lines = []
    for (kind, group, n), found in sorted(by_case.items(), key=lambda each: KINDS.index(each[0][0])):
        cells = [kind, f"{len(found[methods[0]])} {group}", f"{n:,}"]
        for method in methods:
            draws = sum(row["draws"] for row in found[method])
            shifted, other, before, after = (
                sum(row["draws"] * row[key] for row in found[method]) / draws
                for key in ("shifted", "other", "before", "after")
            )
            cells += [f"{100 * shifted:.1f} %", f"{100 * other:.1f} %", f"{before:.3f} → {after:.3f}"]
        lines.append(cells)
    return table(["shift", "sets", "predictions", *columns], lines)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--study", choices=tuple(STUDIES), required=True)
    args = parser.parse_args()
    run(args.folders, args.out, args.study)


if __name__ == "__main__":
    main()
