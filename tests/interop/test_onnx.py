"""ONNX files give the probabilities that torch gives, for every method, type and number of samples."""

import copy
import os
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from calibrators.fits import Method, data, fitted
from commands import refused, run
from conftest import random_predictions
from temperance.calibrators import CALIBRATORS, Auto, Calibrator, KernelLogistic, OrderPreserving, Temperature
from temperance.errors import InputError, MissingExtraError, NotFittedError
from temperance.interop.onnx import EXPORTABLE, difference, export

# In continuous integration a missing package is a failure, not a reason to skip.
missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
needs_onnx = pytest.mark.skipif(
    bool(missing) and os.environ.get("CI") != "true", reason=f"not installed: {', '.join(missing)}"
)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-6}


@pytest.fixture(scope="module", autouse=True)
def one_table_of_operations() -> Iterator[None]:
    """torch builds the table of what ONNX can do, a second's work, for every export; here it is built once."""
    with pytest.MonkeyPatch.context() as patch:
        if not missing:
            from torch.onnx._internal.exporter._registration import ONNXRegistry

            patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(cache(ONNXRegistry.from_torchlib)))
        yield


def logits_like(dtype: torch.dtype, n: int = 100) -> Tensor:
    """New logits, some of them with ties."""
    logits, _ = random_predictions(n, 4, 1, sharpness=3.0)
    return torch.cat([logits, logits.round(), torch.zeros(1, 4)]).to(dtype)


def check_export(found: Calibrator, path: Path, dtype: torch.dtype) -> None:
    export(None, found, path, dtype=dtype)
    for n in (1, 100):
        assert difference(path, None, found, logits_like(dtype, n)) <= TOLERANCE[dtype]


class Together(Temperature):
    """Every method, and variants of one, in one file: what an export costs beside its operations is paid once."""

    k = 4

    def __init__(self) -> None:
        super().__init__()
        variants: tuple[Literal["op", "diag"], ...] = ("op", "diag")
        self.methods = nn.ModuleDict({method.name: fitted(method) for method in CALIBRATORS})
        for variant in variants:
            self.methods[f"order-preserving {variant}"] = OrderPreserving(variant=variant).fit(*data())

    def forward(self, logits: Tensor, groups: Tensor | None = None) -> Tensor:
        return torch.stack([method(logits) for method in self.methods.values()])


@needs_onnx
def test_every_method_agrees_with_onnxruntime(tmp_path: Path) -> None:
    """With float64 logits, which show where a runtime computes in float32."""
    import onnxruntime

    together: Any = Together()
    export(None, together, tmp_path / "all.onnx", dtype=torch.float64)
    session = onnxruntime.InferenceSession(str(tmp_path / "all.onnx"), providers=["CPUExecutionProvider"])
    for n in (1, 100):
        logits = logits_like(torch.float64, n)
        [probs] = session.run(None, {"logits": logits.numpy()})
        for found, (name, method) in zip(probs, together.methods.items(), strict=True):
            expected = method.predict_proba(logits)
            assert float((torch.from_numpy(found) - expected).abs().max()) <= TOLERANCE[torch.float64], name


# Logits of another type are cast before and after by the same code for all methods.
@needs_onnx
@pytest.mark.parametrize("method", [Temperature, Auto], ids=lambda method: method.name)
def test_float32_agrees_too(method: Method, tmp_path: Path) -> None:
    check_export(fitted(method), tmp_path / "cal.onnx", torch.float32)


@needs_onnx
def test_a_cosine_is_written_as_a_sine(tmp_path: Path) -> None:
    """onnxruntime 1.20 to 1.26 have no cosine in float64."""
    import onnx

    export(None, KernelLogistic().fit(*data()), tmp_path / "cal.onnx")
    used = {node.op_type for node in onnx.load(tmp_path / "cal.onnx").graph.node}
    assert "Sin" in used and "Cos" not in used


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.BatchNorm1d(6), nn.Linear(6, 4), nn.Linear(3, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = self.first(self.norm(x)) + self.second(y)
        return found


@needs_onnx
def test_a_network_with_its_calibrator(tmp_path: Path) -> None:
    """For any number of samples, in evaluation mode, and leaving the network as it is."""
    network, found = TwoInputs(), fitted(CALIBRATORS["vector"])
    before = copy.deepcopy(network.state_dict())
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(50, width, generator=generator) for width in (6, 3))
    for example in (tuple(x[:1] for x in inputs), tuple(x[:5] for x in inputs)):
        export(network, found, tmp_path / "network.onnx", example)
        assert difference(tmp_path / "network.onnx", network, found, inputs) <= TOLERANCE[torch.float32]
    assert network.training and all(torch.equal(before[name], value) for name, value in network.state_dict().items())


@needs_onnx
def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    import onnx

    export(None, fitted(Temperature), tmp_path / "cal.onnx")
    found = onnx.load(tmp_path / "cal.onnx")
    facts = {entry.key: entry.value for entry in found.metadata_props}
    assert facts["method"] == "temperature" and facts["classes"] == "4" and "temperance" in facts
    assert [entry.name for entry in found.graph.input] == ["logits"]
    assert [entry.name for entry in found.graph.output] == ["probs"]
    for value in (*found.graph.input, *found.graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param == "batch"  # any number of samples


@needs_onnx
def test_the_command(tmp_path: Path) -> None:
    found = fitted(CALIBRATORS["vector"])
    found.save(tmp_path / "cal.safetensors")
    said = run("export", tmp_path / "cal.safetensors")
    assert (
        said.code == 0 and "exported vector for 4 classes" in said.out and "differ from torch's by at most" in said.out
    )
    assert difference(tmp_path / "cal.onnx", None, found, logits_like(torch.float32)) <= TOLERANCE[torch.float32]
    assert run("export", tmp_path / "cal.safetensors", "-o", tmp_path / "b.onnx", "--type", "float64").code == 0
    assert difference(tmp_path / "b.onnx", None, found, logits_like(torch.float64)) <= TOLERANCE[torch.float64]


def test_the_command_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cal.safetensors"
    fitted(Temperature).save(path)
    assert "would be overwritten" in refused(["export", str(path), "-o", str(path)], capsys)
    assert "does not exist" in refused(["export", str(tmp_path / "none.safetensors")], capsys)
    said = refused(["export", str(path), "-o", str(tmp_path / "cal.pt2")], capsys)
    assert f"a calibrator is exported as .onnx; call it {tmp_path / 'cal.onnx'}" in said


class Named(nn.Linear):
    """A network that returns its logits by name, as those of Transformers do."""

    def forward(self, inputs: Tensor) -> Any:
        return {"logits": super().forward(inputs)}


def test_wrong_input_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = fitted(Temperature)
    with pytest.raises(NotFittedError, match="not fitted yet"):
        export(None, Temperature(), tmp_path / "cal.onnx")
    with pytest.raises(InputError, match="pass inputs, too: an example batch"):
        export(nn.Linear(6, 4), found, tmp_path / "cal.onnx")
    with pytest.raises(InputError, match="inputs must be a tensor or several"):
        export(nn.Linear(6, 4), found, tmp_path / "cal.onnx", [])
    with pytest.raises(InputError, match="calibrator must be a fitted calibrator; got Linear"):
        export(found, nn.Linear(6, 4), tmp_path / "cal.onnx", torch.ones(2, 4))  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"the network must return logits .*, not a dict: export a module that returns"
    ):
        export(Named(6, found.k), found, tmp_path / "cal.onnx", torch.ones(2, 6))
    for wrong in (torch.ones(2, 5), (torch.ones(2, 6), torch.ones(2, 6))):
        with pytest.raises(InputError, match=r"the network does not take inputs of shape \(2, [56]\).*: "):
            export(nn.Linear(6, 4), found, tmp_path / "cal.onnx", wrong)
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"export to ONNX needs onnx: pip install 'temperance\[onnx\]'"):
        export(None, found, tmp_path / "cal.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("m", [1, 2, 7, 8])
@pytest.mark.parametrize("right", [False, True])
def test_bisection_is_searchsorted(m: int, right: bool) -> None:
    bisect = EXPORTABLE[torch.ops.aten.searchsorted.Tensor]
    generator = torch.Generator().manual_seed(m)
    edges = torch.randint(0, 10, (3, m), generator=generator).sort(dim=1).values.double()
    values = torch.randint(-1, 11, (3, 40), generator=generator).double()
    assert torch.equal(bisect(edges, values, right=right), torch.searchsorted(edges, values, right=right))
    assert torch.equal(bisect(edges[0], values, right=right), torch.searchsorted(edges[0], values, right=right))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about TorchScript
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # the number of classes becomes a constant
@pytest.mark.parametrize("method", [Auto, OrderPreserving, CALIBRATORS["isotonic"]], ids=lambda m: m.name)
def test_torchscript_traces_it(method: Method) -> None:
    found = fitted(method)
    logits = logits_like(torch.float32)
    traced = torch.jit.trace(found, (logits[:7],))  # type: ignore[no-untyped-call]
    assert torch.allclose(traced(logits), found(logits))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about TorchScript
def test_torchscript_traces_a_temperature_without_a_warning() -> None:
    found, logits = fitted(Temperature), logits_like(torch.float32)
    traced = torch.jit.trace(found, (logits[:7],))  # type: ignore[no-untyped-call]
    assert torch.allclose(traced(logits), found(logits))
