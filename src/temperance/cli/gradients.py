"""temperance gradients LOSS… -o PAGE.html: a page of what losses do to predictions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from temperance.cli.output import check_outputs, check_page_name
from temperance.errors import InputError
from temperance.settings import Bounds, of_kind

if TYPE_CHECKING:
    from temperance.losses import Loss

# What each figure shows where no losses are named.
FIGURES = {
    "smoothing": ("label-smoothing", "focal", "cpc", "mdca", "mbls", "acls:detach=True"),
    "weights": ("cross-entropy", "focal", "inverse-focal", "aurc", "au:low_conf_coverage=0.5:variant=paper"),
    "rival": ("dual-focal", "dual-focal:behaviour=eq24", "dual-focal:behaviour=eq25-26", "focal:gamma=5"),
    "cdf": tuple(f"au:cdf_bandwidth={width}" for width in (0.01, 0.05, 0.1, 0.3)),
}
CLASSES = 10  # for smoothing
RIVAL = 0.45  # the probability of another class


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("gradients", help="draw what losses do to predictions")
    parser.add_argument(
        "losses", nargs="*", metavar="LOSS", help="names that `temperance list losses` shows, as name:setting=value"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="PAGE.html", help="where the page goes")
    parser.add_argument(
        "--figure",
        choices=tuple(FIGURES),
        default="smoothing",
        help="smoothing: how they move the label of each class, and when (ACLS); weights: weight, loss and slope over "
        "the label's probability; rival: the same next to a class of fixed probability, so that predictions are wrong; "
        "cdf: the smoothed distribution of the au loss",
    )
    parser.add_argument("--against", choices=("logit", "probability"), help="what smoothing is drawn over (logit)")
    parser.add_argument("--classes", type=int, metavar="K", help="number of classes for smoothing (10)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    check_outputs(args)
    check_page_name(args.output)
    if args.figure != "smoothing" and (args.against or args.classes is not None):
        raise InputError(f"--against and --classes are for the figure smoothing; leave them out for {args.figure}")
    k = CLASSES if args.classes is None else args.classes
    of_kind("classes", k, Annotated[int, Bounds(3, 10_000)])

    from temperance.diagnose.gradient import probe
    from temperance.files import write_text

    losses = {text: probe(text, k=k) for text in args.losses or FIGURES[args.figure]}
    write_text(args.output, _page(losses, args.figure, args.against or "logit", k))
    print(f"drew {', '.join(losses)}; the page is in {args.output}")


def _page(losses: dict[str, Loss], figure: str, against: str, k: int) -> str:
    from temperance.diagnose.gradient import against_probability, beside_rival, smoothed_distribution, sweep
    from temperance.losses import AU
    from temperance.report.pages.gradients import distribution_page, rival_page, smoothing_page, weights_page

    about = [(text, f"{loss.summary}. {loss.paper}.") for text, loss in losses.items()]
    if figure == "smoothing":
        sweeps = {name: (sweep(loss, "top", k=k), sweep(loss, "other", k=k)) for name, loss in losses.items()}
        return smoothing_page(sweeps, about, against=against)
    if figure == "weights":
        return weights_page({name: against_probability(loss) for name, loss in losses.items()}, about)
    if figure == "rival":
        return rival_page({name: beside_rival(loss, rival=RIVAL) for name, loss in losses.items()}, RIVAL, about)
    widths = [loss.cdf_bandwidth for loss in losses.values() if isinstance(loss, AU)]
    if len(widths) < len(losses):
        raise InputError("the figure cdf is of the au loss: name it with bandwidths, as in au:cdf_bandwidth=0.1")
    return distribution_page(smoothed_distribution(widths), about[:1])
