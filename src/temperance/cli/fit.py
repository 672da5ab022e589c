"""temperance fit METHOD PRED -o CAL and temperance apply CAL PRED -o OUT: one calibrator, to keep and to use."""

from __future__ import annotations

import argparse
import glob
from pathlib import Path
from typing import TYPE_CHECKING

from temperance.cli.output import check_calibrator_name, check_outputs, progress_bar
from temperance.cli.reading import add_ray_option, add_reading_options, reading_options
from temperance.errors import FileError, InputError, TemperanceError, plural
from temperance.files import refuse_overwriting
from temperance.progress import listening

if TYPE_CHECKING:
    from temperance.calibrators import Calibrator

# What is printed of what a fit learnt and recorded, and in which words. The rest is in the calibrator and its `info`.
WORDS = {
    "temperature": "temperature",
    "temperatures": "temperature of each class",
    "temperature_range": "lowest and highest temperature",
    "threshold": "entropy above which predictions become uniform",
    "coefficients": "coefficients",
    "off_diagonal": "penalty on weights between classes (off_diagonal)",
    "intercept": "penalty on shifts (intercept)",
    "weights": "weights",
    "held_out_nll": "NLL on samples left out of the fit",
}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("fit", help="fit one calibrator and save it")
    parser.add_argument("method", metavar="METHOD", help="a name that `temperance list calibrators` shows")
    parser.add_argument(
        "predictions", type=Path, metavar="PRED", help="held-out predictions (val, in a file with both)"
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="CAL", help="the file to save it in")
    parser.add_argument("--objective", metavar="NAME", help="what it minimises, as `temperance list objectives` shows")
    parser.add_argument(
        "--prior", metavar="PRIOR", help="how common the classes are in use: uniform, same, or a file of numbers"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, or objective.KEY=VALUE; a list is a+b",
    )
    add_reading_options(parser, "label", "group", "weight", "ignore-index", "answers", "multilabel")
    parser.set_defaults(run=run)

    use = commands.add_parser("apply", help="calibrate predictions with a saved calibrator")
    use.add_argument("calibrator", type=Path, metavar="CAL", help="a file that `fit` or `compare` saved")
    use.add_argument(
        "predictions", type=Path, metavar="PRED", help="a file or a folder; whatever else it holds is kept"
    )
    use.add_argument("-o", "--output", type=Path, required=True, metavar="OUT", help="a file, or a new folder")
    use.add_argument("--split", choices=("val", "test"), help="which set, in a file with both (default: test)")
    use.add_argument("--prior", metavar="PRIOR", help="as for fit, or adapt: estimate it from these predictions")
    use.add_argument("--again", action="store_true", help="calibrate even if the predictions are calibrated already")
    add_reading_options(use, "label", "group", "weight", "answers", "multilabel")
    add_ray_option(use, "calibrate a folder")
    use.set_defaults(run=run_apply)


def run(args: argparse.Namespace) -> None:
    check_outputs(args)
    check_calibrator_name(args.output)

    from temperance.calibrators import CALIBRATORS
    from temperance.jobs.advice import by_reason
    from temperance.jobs.application import fit, read_prior
    from temperance.jobs.outcomes import Method
    from temperance.jobs.sides import counted, read_for_fitting
    from temperance.predictions.checks import excerpt
    from temperance.registry import as_entry
    from temperance.showing import short

    if str(args.predictions).split(":")[0] in CALIBRATORS and args.method.split(":")[0] not in CALIBRATORS:
        raise InputError(f"the method comes first: temperance fit {args.predictions} {args.method} -o {args.output}")
    written = as_entry(args.method, {"objective": args.objective} if args.objective else {})
    method = Method.parse(":".join([written, *args.set]))
    made = method.make()
    data = read_for_fitting(args.predictions, **reading_options(args))
    if args.prior is not None:
        made.set_params(prior=read_prior(args.prior, data.k))
    with progress_bar() as tell, listening(tell):
        found = fit(made, data)
    found.save(args.output)
    rows = counted(data.n_counted, data.row_name, weights=data.has_weights)
    print(f"fitted {method.label} on {rows}; saved in {args.output}")
    if "verdict" in found.info:
        print(found.info["verdict"])
    known = {name: value.tolist() for name, value in found.learnt.items()} | found.info
    for name, words in WORDS.items():
        if known.get(name, {}) != {}:
            print(f"  {words}: {short(known[name])}")
    for names, why in by_reason(known.get("left_out", {})):
        print(f"  not fitted: {names}, because {why}")
    print(f"  numbers learnt: {found.n_parameters:,}")
    absent = [found.class_names[j] if found.class_names else str(j) for j in known.get("absent_classes", ())]
    if absent:
        print(f"  classes without {data.row_name}s: {excerpt(absent)}")
    if known.get("converged") is False:
        print("  It stopped before it settled: more steps could still change it.")


def _calibrator(args: argparse.Namespace) -> Calibrator:
    """The calibrator to apply. If it is where the predictions should be, the error has the right order."""
    from temperance.calibrators import load_calibrator

    try:
        return load_calibrator(args.calibrator)
    except FileError:
        try:
            load_calibrator(args.predictions)
        except (TemperanceError, OSError):
            swapped = False
        else:
            swapped = True
        if not swapped:
            raise
    raise InputError(
        f"the calibrator comes first: temperance apply {args.predictions} {args.calibrator} -o {args.output}"
    )


def run_apply(args: argparse.Namespace) -> None:
    if not (args.predictions.is_dir() or glob.has_magic(str(args.predictions))):  # the output is a file, not a folder
        check_outputs(args)

    from temperance.calibrators.priors import SAME, UNIFORM
    from temperance.jobs.application import ADAPT, LARGE, apply, fitted_on_these, read_prior, with_prior
    from temperance.predictions import check_output, read_predictions, write_predictions

    check_output(args.output)
    calibrator = _calibrator(args)
    data = read_predictions(args.predictions, split=args.split, labels="optional", **reading_options(args))
    refuse_overwriting(args.output, [args.calibrator, args.predictions, *(shard.source for shard in data.shards)])
    if args.prior is not None:
        calibrator = with_prior(calibrator, read_prior(args.prior, data.k, (UNIFORM, SAME, ADAPT)), data)
    if args.ray is not None:
        from temperance.interop import ray

        ray.apply(calibrator, data, args.output, address=args.ray or None, again=args.again)
    else:
        write_predictions(args.output, apply(calibrator, data, again=args.again))
    which = f" of the {data.split} set" if data.split else ""
    what = "confidences" if data.answers else "probabilities"
    print(f"calibrated {plural(data.n_counted, data.row_name)}{which} with {calibrator.name}; {what} in {args.output}")
    if data.other_split:
        other = data.other_split
        print(f"the {other} set is left out; to calibrate it, too, add --split {other}, with another -o")
    if "adapted" in calibrator.info:
        print(calibrator.info["adapted"])
    small = data.has_labels and data.n * data.k <= LARGE  # others would be read once more
    if small and (known := fitted_on_these(calibrator, data)):
        print(f"{known}, so do not measure it on them")
