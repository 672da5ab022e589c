"""temperance export CAL [-o cal.onnx]: a saved calibrator as an ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path

from temperance.cli.output import check_outputs
from temperance.errors import FileError

# Rows of made-up logits on which the file is compared with torch.
COMPARED = 256


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "export", help="write a saved calibrator as an ONNX file, logits in, probabilities out"
    )
    parser.add_argument("calibrator", type=Path, metavar="CAL", help="a file that `fit` or `compare` saved")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.onnx", help="where it goes (default: CAL with the suffix .onnx)"
    )
    parser.add_argument(
        "--type", choices=("float32", "float64"), default="float32", help="dtype of the logits (default: float32)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    import torch

    from temperance.calibrators import load_calibrator
    from temperance.interop.onnx import difference, export

    args.output = args.output or args.calibrator.with_suffix(".onnx")
    check_outputs(args)
    if args.output.suffix != ".onnx":
        raise FileError(f"a calibrator is exported as .onnx; call it {args.output.with_suffix('.onnx')}")
    calibrator = load_calibrator(args.calibrator)
    kind = getattr(torch, args.type)
    export(None, calibrator, args.output, dtype=kind)
    made_up = 3 * torch.randn(COMPARED, calibrator.k, generator=torch.Generator().manual_seed(0))
    apart = difference(args.output, None, calibrator, made_up.to(kind))
    print(f"exported {calibrator.name} for {calibrator.k} classes; saved in {args.output}")
    print(f"  takes logits (n, {calibrator.k}) in {args.type} and gives probs (n, {calibrator.k})")
    print("  if it was fitted to probabilities, it takes their logarithms instead of logits")
    print(f"  in onnxruntime its probabilities differ from torch's by at most {apart:.1g}")
