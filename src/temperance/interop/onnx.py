"""A calibrated network, or a calibrator alone, as an ONNX file that any runtime can use without temperance or torch.

    export(network, calibrator, "calibrated.onnx", images)
    export(None, calibrator, "calibrator.onnx")

It needs onnx, onnxscript and onnxruntime, which come with the extra `onnx`.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from temperance import __version__
from temperance.calibrators import Calibrator
from temperance.errors import InputError, MissingExtraError
from temperance.files import atomic_write

# The example that a calibrator alone is traced with has this many rows; the file takes any number.
EXAMPLE_ROWS = 8


def export(
    network: nn.Module | None,
    calibrator: Calibrator,
    path: str | Path,
    inputs: Tensor | Sequence[Tensor] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Write an ONNX file that gives calibrated probabilities, named `probs`, for any number of samples.

    network     gives logits; without one the file takes logits (n, k), named `logits`
    calibrator  a fitted one
    inputs      an example batch for the network, a tensor or several, with samples in the first dimension; the file
                calls them `input_0`, `input_1`, …
    dtype       of the logits that a file without a network takes

    The calibrator computes in float64 inside, as it does in torch, and returns the type of the logits.
    """
    model, example = _model_and_example(network, calibrator, inputs, dtype)
    _required()
    try:
        with torch.no_grad():
            model(*example)
    except (RuntimeError, TypeError) as error:
        shapes = ", ".join(str(tuple(each.shape)) for each in example)
        raise InputError(f"the network does not take inputs of shape {shapes}: {error}") from None
    names = ["logits"] if network is None else [f"input_{i}" for i in range(len(example))]
    batch = torch.export.Dim("batch")
    with _quiet():
        traced = torch.export.export(model, example, dynamic_shapes=(tuple({0: batch} for _ in example),))
        program = torch.onnx.export(
            traced.run_decompositions(EXPORTABLE),
            dynamo=True,
            verbose=False,
            input_names=names,
            output_names=["probs"],
            dynamic_shapes=(tuple({0: "batch"} for _ in example),),  # by this name in the file
        )
        assert program is not None
        facts = {"temperance": __version__, "method": calibrator.name, "classes": str(calibrator.k)}
        program.model.metadata_props.update(facts)
        with atomic_write(path) as temporary:
            program.save(temporary)


def difference(
    path: str | Path, network: nn.Module | None, calibrator: Calibrator, inputs: Tensor | Sequence[Tensor]
) -> float:
    """The largest difference between the probabilities of an exported file, in onnxruntime, and those of torch."""
    model, given = _model_and_example(network, calibrator, inputs, torch.float32)
    _required()
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = {entry.name: value.cpu().numpy() for entry, value in zip(session.get_inputs(), given, strict=True)}
    found = torch.from_numpy(session.run(None, feed)[0])
    with torch.no_grad():
        expected = model(*given).cpu()
    return float((found.double() - expected.double()).abs().max())


class _Calibrated(nn.Module):
    """Probabilities of a network's inputs, or of logits."""

    def __init__(self, network: nn.Module | None, calibrator: Calibrator) -> None:
        super().__init__()
        self.network, self.calibrator = network, calibrator

    def forward(self, *inputs: Tensor) -> Tensor:
        logits = inputs[0] if self.network is None else self.network(*inputs)
        if not isinstance(logits, Tensor):
            raise InputError(
                f"the network must return logits (n, {self.calibrator.k}), not a {type(logits).__name__}: export a "
                "module that returns the logits alone"
            )
        found: Tensor = self.calibrator(logits).exp()
        return found


def _model_and_example(
    network: nn.Module | None, calibrator: Calibrator, inputs: Tensor | Sequence[Tensor] | None, dtype: torch.dtype
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A copy of both in evaluation mode, and example inputs with at least two samples."""
    if not isinstance(calibrator, Calibrator):
        raise InputError(f"calibrator must be a fitted calibrator; got {type(calibrator).__name__}")
    k = calibrator.k
    if calibrator.group_names:
        raise InputError(
            f"this {calibrator.name} calibrator needs the group of each sample, which an exported one cannot be told; "
            "export a calibrator that all groups share"
        )
    if inputs is None:
        if network is not None:
            raise InputError("pass inputs, too: an example batch for the network, with samples in the first dimension")
        inputs = torch.linspace(-3, 3, EXAMPLE_ROWS * k, dtype=dtype).reshape(EXAMPLE_ROWS, k)
    several = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    if not several or not all(isinstance(each, Tensor) and each.ndim and len(each) for each in several):
        raise InputError("inputs must be a tensor or several, with the samples in their first dimension")
    # A dimension of one would be taken for a constant.
    several = tuple(torch.cat([each, each]) if len(each) == 1 else each for each in several)
    return copy.deepcopy(_Calibrated(network, calibrator)).eval(), several


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings, which are about its own deprecated parts and packages that it does not need."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _required() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(error.name or "onnx", "onnx", "export to ONNX") from None


# ----------------------------------------------------------------------------------- operations that ONNX does not have


def _searchsorted(
    edges: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Any:
    """How many edges (..., m) lie below each value (..., n), by bisection: a step for each binary digit of m."""
    if sorter is not None:
        return NotImplemented
    inclusive = right or side == "right"
    m = edges.shape[-1]
    found = torch.zeros_like(values, dtype=torch.int64)
    for digit in reversed(range(m.bit_length())):
        further = found + (1 << digit)
        place = (further - 1).clamp_max(m - 1)
        edge = edges[place] if edges.ndim == 1 else edges.gather(-1, place)
        below = edge <= values if inclusive else edge < values
        found = torch.where(below & (further <= m), further, found)
    return found.int() if out_int32 else found


def _stable_sort(values: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """ONNX sorts with TopK, which is stable: of equal values the one with the lower index comes first."""
    return torch.ops.aten.sort.default(values, dim, descending)


def _softplus(values: Tensor, beta: float = 1, threshold: float = 20) -> Any:
    """log(1 + exp(x)); onnxruntime has it in float32 only."""
    if values.dtype != torch.float64:
        return NotImplemented
    scaled = values * beta
    return (scaled.clamp_min(0) + (1 + (-scaled.abs()).exp()).log()) / beta


def _cos(values: Tensor) -> Any:
    """A shifted sine: many versions of onnxruntime have the cosine in float32 only."""
    return (values + math.pi / 2).sin()


EXPORTABLE: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.searchsorted.Tensor: _searchsorted,
    torch.ops.aten.sort.stable: _stable_sort,
    torch.ops.aten.softplus.default: _softplus,
    torch.ops.aten.cos.default: _cos,
}
