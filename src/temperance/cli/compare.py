"""temperance compare FIT [TEST]: fit every calibrator, rank them honestly, recommend one, save it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temperance.cli.output import add_output_options, check_calibrator_name, check_outputs, emit, progress_bar
from temperance.cli.reading import (
    Once,
    add_by_option,
    add_each_option,
    add_ray_option,
    add_reading_options,
    is_by_group,
    one_set_on_ray,
    reading_options,
)
from temperance.errors import InputError, plural
from temperance.files import check_writable

if TYPE_CHECKING:
    from temperance.jobs.comparison import Comparison
    from temperance.predictions import Predictions


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("compare", help="fit every calibrator, rank them honestly, recommend one and save it")
    parser.add_argument("fit", type=Path, metavar="FIT", help="predictions to fit on; halved if there is no TEST")
    parser.add_argument("test", type=Path, nargs="*", metavar="TEST", help="predictions to measure on")
    add_each_option(parser)
    add_comparing_options(parser, "save the recommended calibrator here; with --each those of all sets, in a folder")
    add_reading_options(parser, "label", "group", "weight", "ignore-index", "answers", "multilabel")
    add_ray_option(parser, "fit methods")
    parser.set_defaults(run=run)


def add_comparing_options(parser: argparse.ArgumentParser, saved: str = "save the recommended calibrator here") -> None:
    parser.add_argument(
        "--methods",
        action=Once,
        default="",
        metavar="NAMES",
        help="comma-separated, with name:setting=value; a list is a+b",
    )
    add_by_option(parser, "also fit `grouped`, whose correction differs between groups of samples")
    parser.add_argument("--n-bins", type=int, default=15, metavar="N", help="bins for binned metrics (15)")
    parser.add_argument("--bootstrap", type=int, default=500, metavar="N", help="resamples for intervals (500)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="methods fitted at the same time (1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the split and the resampling (0)")
    parser.add_argument("-o", "--output", type=Path, metavar="CAL", help=saved)
    parser.add_argument("--refit", action="store_true", help="refit the saved calibrator on everything, TEST included")
    add_output_options(parser)


def run(args: argparse.Namespace) -> None:
    if args.each:
        rank_each([args.fit, *args.test], args)
        return
    check_outputs(args)
    if args.output:
        if args.output.suffix.lower() == ".html":
            raise InputError(f"-o is for the calibrator; write the page with --report {args.output}")
        check_calibrator_name(args.output)
    if len(args.test) > 1:
        raise InputError(
            f"a comparison has one FIT and one TEST; got {1 + len(args.test)} files. If each is a set of its own, add "
            "--each"
        )
    rank(args.fit, args.test[0] if args.test else None, args)


def rank_each(paths: Sequence[Path], args: argparse.Namespace) -> None:
    """Compare on every set as the options say, print one table, write the files."""
    from temperance.jobs.outcomes import BASELINE
    from temperance.jobs.several import compare_each
    from temperance.predictions import each_file
    from temperance.predictions.disk import is_folder_name

    folder = args.output
    check_outputs(argparse.Namespace(**vars(args) | {"output": None}))
    _check_refit(args)
    if folder and not is_folder_name(folder):
        raise InputError(f"with --each there is a calibrator for every set, so -o is a folder; got {folder}")
    if folder and any(folder.resolve().is_relative_to(path.resolve()) for path in paths):
        raise InputError(
            f"{folder} is in a folder that is read here, so the next run would read it too; choose another"
        )
    one_set_on_ray(args)
    with progress_bar() as tell:
        found = compare_each(
            each_file(paths), folder=folder, refit=args.refit, progress=tell, **comparing_options(args)
        )
    emit(found, args)
    if not folder:
        found.raise_failures()
        return
    n, none = len(found.findings), sum(finding.recommended == BASELINE for finding in found.findings.values())
    if none == n:
        sets = "the set" if n == 1 else f"any of the {n:,} sets"
        said = [f"no calibrator is recommended for {sets}", f"the measurements are in {folder}"]
    else:
        said = [f"the recommended calibrators and the measurements are in {folder}"]
        said += [f"for {plural(none, 'set')} none is recommended"] if none else []
    said += [f"{plural(len(found.kept), 'set')} had been compared before"] if found.kept else []
    if none == n and not found.failures:
        raise InputError("; ".join(said))
    print("; ".join(said), file=sys.stderr)
    found.raise_failures()


def _check_refit(args: argparse.Namespace) -> None:
    if args.refit and not args.output:
        raise InputError("--refit changes the calibrator that is saved: add -o CAL to save it")


def rank(fit: Predictions | Path, test: Predictions | Path | None, args: argparse.Namespace) -> None:
    """Compare as the options say, print, write the files."""
    _check_refit(args)
    if args.output:
        check_writable(args.output)
    options = comparing_options(args)
    with progress_bar() as tell:
        if vars(args).get("ray") is not None:
            if options.pop("jobs") != 1:
                raise InputError("a Ray cluster decides how many methods it fits at once: leave out --jobs or --ray")
            from temperance.interop import ray

            found = ray.compare(fit, test, address=args.ray or None, progress=tell, **options)
        else:
            from temperance.jobs.comparison import compare

            found = compare(fit, test, progress=tell, **options)
    saved = save(found, args.output, refit=args.refit) if args.output and found.recommends else ""
    emit(found, args)
    if saved:
        print(saved, file=sys.stderr)
    elif args.output and found.any_fitted:
        how = " --answers" * args.answers + " --multilabel" * args.multilabel
        raise InputError(
            f"no calibrator is recommended, so nothing is written to {args.output}. To save a method anyway: "
            f"temperance fit METHOD {fit if isinstance(fit, Path) else 'FIT'}{how} -o {args.output}"
        )
    elif args.output:
        raise InputError(f"no calibrator could be fitted, so nothing is written to {args.output}")


def comparing_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_comparing_options`, and how files are read, for the library."""
    return {
        "methods": args.methods,
        "n_bins": args.n_bins,
        "bootstrap": args.bootstrap,
        "jobs": args.jobs,
        "by_group": is_by_group(args),
        "seed": args.seed,
        **reading_options(args),
    }


def save(found: Comparison, path: Path, *, refit: bool) -> str:
    """Save the recommended calibrator; the sentence says where it is and what it was fitted on."""
    chosen = found.calibrator(refit=refit)
    chosen.save(path)
    return f"{found.recommended.label}, fitted on {chosen.info['fitted_on']}, is in {path}"
