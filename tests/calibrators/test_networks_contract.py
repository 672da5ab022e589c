"""Every calibrator as the last layer of a network: cast, moved, compiled, exported, loaded, and without float64."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from calibrators.fits import Method, another, data, each, fitted
from temperance.calibrators import CALIBRATORS, Calibrator, base, buffers, load_calibrator

Network = torch.nn.Sequential
Casts = dict[str, Callable[[torch.nn.Module], object]]

CASTS: Casts = {
    "float": lambda network: network.float(),
    "half": lambda network: network.half(),
    "bfloat16": lambda network: network.bfloat16(),
    "double": lambda network: network.double(),
    "to float16": lambda network: network.to(torch.float16),
    "type": lambda network: network.type(torch.bfloat16),
    "half and back": lambda network: network.half().float(),
    "to cpu": lambda network: network.to("cpu", torch.float16).cpu(),
}
ON_CUDA: Casts = {
    "cuda": lambda network: network.cuda(),
    "cuda half": lambda network: network.to("cuda", torch.float16),
    "cuda and back": lambda network: network.cuda().bfloat16().cpu(),
}
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def network_with(found: Calibrator) -> Network:
    """A network that ends with a copy of a calibrator, and whose logits are like those it was fitted on."""
    last = torch.nn.Linear(4, 4)
    with torch.no_grad():
        last.weight.copy_(torch.eye(4) + 0.01)
        last.bias.copy_(torch.linspace(-0.1, 0.1, 4))
    return Network(last, copy.deepcopy(found)).eval()


def weight_of(network: Network) -> torch.Tensor:
    weight = network[0].weight
    assert isinstance(weight, torch.Tensor)
    return weight


def inputs_of(network: Network) -> torch.Tensor:
    return data(60, seed=1)[0].to(weight_of(network))


@torch.no_grad()
def answer(found: Calibrator, network: Network) -> torch.Tensor:
    """What a calibrator that was never cast makes of a network's own logits, rounded to their type."""
    logits: torch.Tensor = network[0](inputs_of(network))
    expected: torch.Tensor = found(logits.cpu().double())
    return expected.to(logits.dtype)


def closely(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal up to a rounding of their type, or of float64 arithmetic in another order."""
    assert found.dtype == expected.dtype
    rounding = 2 * torch.finfo(found.dtype).eps
    return torch.allclose(found.detach().cpu().double(), expected.double(), rtol=rounding, atol=max(rounding / 8, 1e-9))


@each
def test_as_the_last_layer_of_a_network(method: Method) -> None:
    found = fitted(method)
    network = torch.nn.Sequential(torch.nn.Linear(6, 4, dtype=torch.float64), found)
    network.eval()
    features = torch.randn(30, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = found.predict_proba(network[0](features))
        assert torch.allclose(network(features).exp(), expected, atol=1e-12)
    dense = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    assert found.predict_proba(dense).shape == dense.shape
    assert torch.equal(
        found.predict_proba(dense).movedim(1, -1).reshape(-1, 4),
        found.predict_proba(dense.movedim(1, -1).reshape(-1, 4)),
    )


@each
def test_a_network_with_it_loads_its_own_state(method: Method) -> None:
    """Into one that is not fitted, and into one that was fitted to something else."""
    network = torch.nn.Sequential(torch.nn.Linear(6, 4), fitted(method))
    features = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    for other in (method(), copy.deepcopy(another(method))):
        fresh = torch.nn.Sequential(torch.nn.Linear(6, 4), other)
        fresh.load_state_dict(network.state_dict())
        assert torch.equal(fresh(features), network(features)) and other.k == 4
    with pytest.raises(RuntimeError, match="Missing key"):
        fresh.load_state_dict({"0.weight": network[0].weight, "0.bias": network[0].bias})


def check_casts(method: Method, casts: Casts) -> None:
    """It computes in float64 from the network's rounded logits, and answers in the network's type."""
    for name, cast in casts.items():
        network = network_with(fitted(method))
        cast(network)
        for key, learnt in fitted(method).state_dict().items():
            kept = network[1].state_dict()[key]
            assert kept.dtype == learnt.dtype and torch.equal(kept.cpu(), learnt), name
        with torch.no_grad():
            found = network(inputs_of(network))
            again = copy.deepcopy(network)(inputs_of(network))
        assert found.dtype == weight_of(network).dtype and found.device == weight_of(network).device, name
        assert torch.equal(found, again), name
        expected = answer(fitted(method), network)
        assert closely(found, expected) if found.is_cuda else torch.equal(found, expected), name


@each
def test_a_cast_network_is_as_exact_as_before(method: Method) -> None:
    check_casts(method, CASTS)


@each
@needs_cuda
def test_a_network_on_a_gpu_is_as_exact_as_before(method: Method) -> None:
    check_casts(method, ON_CUDA)


@each
def test_a_cast_network_takes_over_a_state(method: Method) -> None:
    """Of a network that was cast or not, into one whose calibrator was never fitted, or fitted to something else."""
    source = network_with(fitted(method)).half()
    expected = answer(fitted(method), source)
    for other in (method(), another(method), fitted(method)):
        network = network_with(other).half()
        network.load_state_dict(source.state_dict())
        assert torch.equal(network(inputs_of(network)), expected)
        network.load_state_dict(source.state_dict(), assign=True)
        assert torch.equal(network(inputs_of(network)), expected)


@each
def test_a_state_that_was_rounded_still_works(method: Method) -> None:
    """What was rounded stays so, but it is computed with in float64."""
    network = network_with(fitted(method))
    rounded = {
        name: value.bfloat16() if value.is_floating_point() else value for name, value in network.state_dict().items()
    }
    for assign in (False, True):
        for other in (method(), fitted(method)):
            fresh = network_with(other)
            fresh.load_state_dict(rounded, assign=assign)
            learnt = fresh[1].state_dict()
            assert all(value.dtype in (torch.float64, torch.int64) for value in learnt.values())
            assert bool(torch.isfinite(fresh.bfloat16()(inputs_of(fresh))).all())


@each
def test_under_autocast_it_answers_in_the_type_of_its_logits(method: Method) -> None:
    network = network_with(fitted(method))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = network[0](inputs_of(network))
        found = network(inputs_of(network))
    assert found.dtype == logits.dtype == torch.bfloat16
    assert torch.equal(found, fitted(method)(logits.double()).bfloat16())


class Together(torch.nn.Module):
    """A cast network with every calibrator at its end, so that a compiler sees them all at once."""

    def __init__(self) -> None:
        super().__init__()
        self.networks = torch.nn.ModuleDict({method.name: network_with(fitted(method)) for method in CALIBRATORS})
        self.half()

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: network(inputs) for name, network in self.networks.items()}

    def wrong(self, found: dict[str, torch.Tensor]) -> list[str]:
        """The calibrators that did not answer as they do alone, without a compiler and a cast."""
        assert found.keys() == self.networks.keys()
        networks = ((name, network) for name, network in self.networks.items() if isinstance(network, Network))
        return [name for name, x in networks if not closely(found[name], answer(fitted(CALIBRATORS[name]), x))]


def test_cast_networks_are_compiled() -> None:
    """In one graph, for any number of samples."""
    together, inputs = Together(), data(60, seed=1)[0].half()
    torch.compiler.reset()
    compiled = torch.compile(together, backend="eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        assert together.wrong(compiled(inputs)) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about its own use of TorchScript
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_cast_network_is_compiled_to_machine_code() -> None:
    exact = fitted(CALIBRATORS["isotonic"])
    network = network_with(exact).half()
    torch.compiler.reset()
    with torch.no_grad():
        found = torch.compile(network, fullgraph=True, dynamic=True)(inputs_of(network))
    assert closely(found, answer(exact, network))


def test_cast_networks_are_exported() -> None:
    """Whole, and for any number of samples."""
    together, inputs = Together(), data(60, seed=1)[0].half()
    found = torch.export.export(together, (inputs[:7],), dynamic_shapes=({0: torch.export.Dim("n")},))
    assert together.wrong(found.module()(inputs)) == []


# A device without float64 is any device, once the calibrators are told that it has none.


@each
def test_without_float64_it_computes_in_float32(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documented error is 1e-5, unless a probability is within rounding of the edge of a step."""

    def receive(tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.dtype != torch.float64
        return tensor.clone()

    exact = fitted(method)
    logits = data(100, seed=1)[0].float()
    expected = exact._calibrate(logits.double()).exp()
    for module in (base, buffers):
        monkeypatch.setattr(module, "working_type", lambda device: torch.float32)
    found = copy.deepcopy(exact)._apply(receive)
    assert {value.dtype for value in found.state_dict().values()} <= {torch.float32, torch.int64}
    probs = found.predict_proba(logits)
    assert probs.dtype == torch.float32 and float((probs - expected).abs().max()) < 1e-5
    assert found(logits.half()).dtype == torch.float16


@each
def test_without_float64_it_is_fitted_elsewhere(
    method: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64 all the same; and it has float64 again where it is loaded or moved to a device that has it."""
    with monkeypatch.context() as patch:
        for module in (base, buffers):
            patch.setattr(module, "working_type", lambda device: torch.float32)
        found = method().fit(*data())
        found.save(tmp_path / "cal.safetensors")
    for name, learnt in fitted(method).state_dict().items():
        kept = found.state_dict()[name]
        assert torch.equal(kept, learnt.float() if learnt.is_floating_point() else learnt)
    logits = data(100, seed=1)[0]
    loaded = load_calibrator(tmp_path / "cal.safetensors")
    assert torch.equal(loaded.predict_proba(logits), found.cpu().predict_proba(logits))
    assert found.cpu().predict_proba(logits).dtype == torch.float64
