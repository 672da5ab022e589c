"""What every registered calibrator must do, read from the registry: none is exempt by name."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from conftest import random_predictions
from temperance import calibrators
from temperance.calibrators import CALIBRATORS, Calibrator, Identity, base, load_calibrator, make_calibrator
from temperance.calibrators.stored import FORMAT
from temperance.data.longtail import long_tailed
from temperance.errors import FileError, InputError, NotFittedError, TemperanceWarning
from temperance.metrics import nll
from temperance.objectives import OBJECTIVES, make_objective
from temperance.settings import defaults_of

each = pytest.mark.parametrize("method", list(CALIBRATORS), ids=CALIBRATORS.names)
# For samples that are too few, or too easy, to determine what a method learns: it warns, and must work all the same.
few = pytest.mark.filterwarnings("ignore::temperance.errors.TemperanceWarning")
Method = type[Calibrator]


def data(n: int = 240, k: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return random_predictions(n, k, seed, sharpness=3.0)


@pytest.fixture(scope="module")
def fitted() -> dict[str, Calibrator]:
    """Every method, fitted once on the same data."""
    return {method.name: method().fit(*data()) for method in CALIBRATORS}


def is_probability(probs: torch.Tensor) -> bool:
    return bool(torch.isfinite(probs).all() and (probs >= 0).all() and (probs.sum(-1) - 1).abs().max() < 1e-9)


@each
def test_rows_are_probabilities(method: Method, fitted: dict[str, Calibrator]) -> None:
    logits, _ = data(100, seed=1)
    probs = fitted[method.name].predict_proba(logits)
    assert probs.shape == logits.shape and probs.dtype == torch.float64 and is_probability(probs)


@each
def test_kinds_of_input_agree(method: Method, fitted: dict[str, Calibrator]) -> None:
    logits, _ = data(50, seed=1)
    found = fitted[method.name]
    probs = found.predict_proba(logits)
    as_numpy = found.predict_proba(logits.numpy())
    assert isinstance(as_numpy, np.ndarray) and np.array_equal(as_numpy, probs.numpy())
    assert np.array_equal(found.predict_proba(logits.tolist()), as_numpy)
    half = found.predict_proba(logits.half())
    assert is_probability(half)


@each
def test_fit_takes_every_kind_of_input(method: Method) -> None:
    logits, labels = data()
    probs = method().fit(logits, labels).predict_proba(logits)
    assert torch.equal(method().fit(logits.numpy(), labels.int().numpy()).predict_proba(logits), probs)
    dense = logits.reshape(12, 20, 4).movedim(-1, 1)
    assert torch.equal(method().fit(dense, labels.reshape(12, 20)).predict_proba(logits), probs)
    marked = torch.cat([labels, torch.full((20,), 255)]).reshape(13, 20)
    padded = torch.cat([logits, torch.zeros(20, 4)]).reshape(13, 20, 4).movedim(-1, 1)
    assert torch.equal(method().fit(padded, marked, ignore_index=255).predict_proba(logits), probs)


@each
def test_refitting_forgets(method: Method) -> None:
    found = method().fit(*data(200, 5, seed=3))
    found.fit(*data())
    fresh = method().fit(*data())
    logits, _ = data(50, seed=1)
    assert torch.equal(found.predict_proba(logits), fresh.predict_proba(logits))
    assert found.state_dict().keys() == fresh.state_dict().keys()


@each
def test_fitting_leaves_inputs_and_global_state_alone(method: Method) -> None:
    logits, labels = data()
    before = logits.clone(), labels.clone(), torch.get_rng_state(), torch.get_default_dtype()
    method().fit(logits, labels)
    assert torch.equal(logits, before[0]) and torch.equal(labels, before[1])
    assert torch.equal(torch.get_rng_state(), before[2]) and torch.get_default_dtype() is before[3]


@each
def test_saving_and_loading_is_bit_equal(method: Method, fitted: dict[str, Calibrator], tmp_path: Path) -> None:
    found = fitted[method.name]
    found.save(tmp_path / "cal.safetensors")
    back = load_calibrator(tmp_path / "cal.safetensors")
    logits, _ = data(100, seed=1)
    assert type(back) is method and back.get_params() == found.get_params()
    assert torch.equal(back.predict_proba(logits), found.predict_proba(logits))
    assert back.info == json.loads(json.dumps(found.info))


@each
def test_as_the_last_layer_of_a_network(method: Method, fitted: dict[str, Calibrator]) -> None:
    found = fitted[method.name]
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
def test_a_network_with_it_loads_its_own_state(method: Method, fitted: dict[str, Calibrator]) -> None:
    """Into one that is not fitted, and into one that was fitted to something else."""
    network = torch.nn.Sequential(torch.nn.Linear(6, 4), fitted[method.name])
    features = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    for other in (method(), method().fit(*data(200, 3, seed=3))):
        fresh = torch.nn.Sequential(torch.nn.Linear(6, 4), other)
        fresh.load_state_dict(network.state_dict())
        assert torch.equal(fresh(features), network(features)) and other.k == 4
    with pytest.raises(RuntimeError, match="Missing key"):
        fresh.load_state_dict({"0.weight": network[0].weight, "0.bias": network[0].bias})


@each
def test_scikit_learn_clones_it(method: Method, fitted: dict[str, Calibrator]) -> None:
    sklearn = pytest.importorskip("sklearn.base", reason="scikit-learn is not installed")
    made = method(**{name: value for name, value in defaults_of(method).items() if name != "seed"})
    copied = sklearn.clone(made)
    assert type(copied) is method and copied is not made
    assert copied.get_params(deep=True) == copied.get_params(deep=False) == made.get_params()
    fresh = sklearn.clone(fitted[method.name])  # settings alone, not what was learnt
    with pytest.raises(NotFittedError):
        fresh.predict_proba([[1.0, -1.0]])


@each
def test_scikit_learn_takes_it_as_a_classifier(method: Method, fitted: dict[str, Calibrator]) -> None:
    sklearn = pytest.importorskip("sklearn.base", reason="scikit-learn is not installed")
    assert sklearn.is_classifier(method()) and not hasattr(method(), "classes_")
    found = fitted[method.name]
    logits, labels = data(100, seed=1)
    assert found.classes_.tolist() == [0, 1, 2, 3]
    assert np.array_equal(found.predict(logits.numpy()), found.predict_proba(logits.numpy()).argmax(1))
    assert torch.equal(found.predict(logits), torch.from_numpy(found.predict(logits.numpy())))
    assert found.score(logits, labels) == pytest.approx(float((found.predict(logits) == labels).double().mean()))
    dense = logits.reshape(5, 20, 4).movedim(-1, 1)
    assert torch.equal(found.predict(dense), found.predict(logits).reshape(5, 20))


@pytest.mark.parametrize("method", [method for method in CALIBRATORS if method.takes_objective], ids=lambda m: m.name)
def test_settings_of_the_objective_can_be_reached(method: Method, tmp_path: Path) -> None:
    found = method()
    found.set_params(objective="class-scaled", objective__normalise="mm").set_params(objective__ddof=0)
    assert found.get_params()["objective"] == "class-scaled:normalise=mm:ddof=0"
    assert found.get_params()["objective__normalise"] == "mm" and found.get_params()["objective__step"] == "paper"
    assert not any("__" in name for name in found.get_params(deep=False))
    found.fit(*data()).save(tmp_path / "cal.safetensors")
    assert load_calibrator(tmp_path / "cal.safetensors").get_params() == found.get_params()
    with pytest.raises(InputError, match="no setting of class-scaled named 'normalize'; did you mean normalise"):
        found.set_params(objective__normalize="mm")


@each
def test_settings_can_be_changed(method: Method) -> None:
    found = method()
    assert found.set_params() is found
    for name, value in defaults_of(method).items():
        with pytest.raises(InputError, match=f"^{method.name}: {name} must be .*; got 1j$"):
            found.set_params(**{name: 1j})
        setattr(found, name, 1j)  # behind the back of set_params
        with pytest.raises(InputError, match=f"^{method.name}: {name} must be .*; got 1j$"):
            found.fit(*data())
        found.set_params(**{name: value})
    with pytest.raises(ValueError, match=f"setting of {method.name}"):
        found.set_params(no_such_setting=1)


# --------------------------------------------------------------------------------------------------- casting and moving

Network = torch.nn.Sequential

CASTS: dict[str, Callable[[torch.nn.Module], object]] = {
    "float": lambda network: network.float(),
    "half": lambda network: network.half(),
    "bfloat16": lambda network: network.bfloat16(),
    "double": lambda network: network.double(),
    "to float16": lambda network: network.to(torch.float16),
    "type": lambda network: network.type(torch.bfloat16),
    "half and back": lambda network: network.half().float(),
    "to cpu": lambda network: network.to("cpu", torch.float16).cpu(),
}
ON_CUDA: dict[str, Callable[[torch.nn.Module], object]] = {
    "cuda": lambda network: network.cuda(),
    "cuda half": lambda network: network.to("cuda", torch.float16),
    "cuda and back": lambda network: network.cuda().bfloat16().cpu(),
}
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
casts = pytest.mark.parametrize(
    "cast",
    [*CASTS.values(), *(pytest.param(cast, marks=needs_cuda) for cast in ON_CUDA.values())],
    ids=[*CASTS, *ON_CUDA],
)


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
@casts
def test_a_cast_network_is_as_exact_as_before(
    method: Method, cast: Callable[[torch.nn.Module], object], fitted: dict[str, Calibrator]
) -> None:
    """It computes in float64 from the network's rounded logits, and answers in the network's type."""
    network = network_with(fitted[method.name])
    cast(network)
    for name, learnt in fitted[method.name].state_dict().items():
        kept = network[1].state_dict()[name]
        assert kept.dtype == learnt.dtype and torch.equal(kept.cpu(), learnt)
    with torch.no_grad():
        found = network(inputs_of(network))
        again = copy.deepcopy(network)(inputs_of(network))
    assert found.dtype == weight_of(network).dtype and found.device == weight_of(network).device
    assert torch.equal(found, again)
    expected = answer(fitted[method.name], network)
    assert closely(found, expected) if found.is_cuda else torch.equal(found, expected)


@each
def test_a_cast_network_takes_over_a_state(method: Method, fitted: dict[str, Calibrator]) -> None:
    """Of a network that was cast or not, into one whose calibrator was never fitted, or fitted to something else."""
    source = network_with(fitted[method.name]).half()
    expected = answer(fitted[method.name], source)
    for other in (method(), method().fit(*data(200, 3, seed=3)), fitted[method.name]):
        network = network_with(other).half()
        network.load_state_dict(source.state_dict())
        assert torch.equal(network(inputs_of(network)), expected)
        network.load_state_dict(source.state_dict(), assign=True)
        assert torch.equal(network(inputs_of(network)), expected)


@each
def test_a_state_that_was_rounded_still_works(method: Method, fitted: dict[str, Calibrator]) -> None:
    """What was rounded stays so, but it is computed with in float64."""
    network = network_with(fitted[method.name])
    rounded = {
        name: value.bfloat16() if value.is_floating_point() else value for name, value in network.state_dict().items()
    }
    for assign in (False, True):
        for other in (method(), fitted[method.name]):
            fresh = network_with(other)
            fresh.load_state_dict(rounded, assign=assign)
            learnt = fresh[1].state_dict()
            assert all(value.dtype in (torch.float64, torch.int64) for value in learnt.values())
            assert bool(torch.isfinite(fresh.bfloat16()(inputs_of(fresh))).all())


@each
def test_under_autocast_it_answers_in_the_type_of_its_logits(method: Method, fitted: dict[str, Calibrator]) -> None:
    network = network_with(fitted[method.name])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = network[0](inputs_of(network))
        found = network(inputs_of(network))
    assert found.dtype == logits.dtype == torch.bfloat16
    assert torch.equal(found, fitted[method.name](logits.double()).bfloat16())


@each
def test_a_cast_network_is_compiled(method: Method, fitted: dict[str, Calibrator]) -> None:
    """In one graph, for any number of samples."""
    network = network_with(fitted[method.name]).half()
    torch.compiler.reset()
    compiled = torch.compile(network, backend="eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        assert closely(compiled(inputs_of(network)), answer(fitted[method.name], network))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about its own use of TorchScript
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize("name", ["isotonic"])
def test_a_cast_network_is_compiled_to_machine_code(name: str, fitted: dict[str, Calibrator]) -> None:
    network = network_with(fitted[name]).half()
    torch.compiler.reset()
    with torch.no_grad():
        found = torch.compile(network, fullgraph=True, dynamic=True)(inputs_of(network))
    assert closely(found, answer(fitted[name], network))


@each
def test_a_cast_network_is_exported(method: Method, fitted: dict[str, Calibrator]) -> None:
    """Whole, and for any number of samples."""
    network = network_with(fitted[method.name]).half()
    inputs = inputs_of(network)
    found = torch.export.export(network, (inputs[:7],), dynamic_shapes=({0: torch.export.Dim("n")},))
    assert closely(found.module()(inputs), answer(fitted[method.name], network))


# A device without float64 is any device, once the calibrators are told that it has none.


@pytest.fixture
def no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "working_type", lambda device: torch.float32)


@each
@pytest.mark.usefixtures("no_float64")
def test_without_float64_it_computes_in_float32(method: Method, fitted: dict[str, Calibrator]) -> None:
    """The documented error is 1e-5, unless a probability is within rounding of the edge of a step."""

    def receive(tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.dtype != torch.float64
        return tensor.clone()

    exact = fitted[method.name]
    logits = data(100, seed=1)[0].float()
    expected = exact._calibrate(logits.double()).exp()
    found = copy.deepcopy(exact)._apply(receive)
    assert {value.dtype for value in found.state_dict().values()} <= {torch.float32, torch.int64}
    probs = found.predict_proba(logits)
    assert probs.dtype == torch.float32 and float((probs - expected).abs().max()) < 1e-5
    assert found(logits.half()).dtype == torch.float16


@each
def test_without_float64_it_is_fitted_elsewhere(
    method: Method, fitted: dict[str, Calibrator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64 all the same; and it has float64 again where it is loaded or moved to a device that has it."""
    with monkeypatch.context() as patch:
        patch.setattr(base, "working_type", lambda device: torch.float32)
        found = method().fit(*data())
        found.save(tmp_path / "cal.safetensors")
    for name, learnt in fitted[method.name].state_dict().items():
        kept = found.state_dict()[name]
        assert torch.equal(kept, learnt.float() if learnt.is_floating_point() else learnt)
    logits = data(100, seed=1)[0]
    if method is not calibrators.Auto:  # whose file names its weights in full
        loaded = load_calibrator(tmp_path / "cal.safetensors")
        assert torch.equal(loaded.predict_proba(logits), found.cpu().predict_proba(logits))
    assert found.cpu().predict_proba(logits).dtype == torch.float64


# ------------------------------------------------------------------------------------------------------------- the rest


@each
def test_preserving_the_argmax_is_a_claim(method: Method, fitted: dict[str, Calibrator]) -> None:
    if not method.preserves_argmax:
        return
    for scale in (0.1, 1.0, 30.0):
        logits = torch.randn(2000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) * scale
        probs = fitted[method.name].predict_proba(logits)
        top = probs.gather(1, logits.argmax(1, keepdim=True)).squeeze(1)
        assert bool((top >= probs.amax(1)).all())


@each
def test_a_class_that_never_occurs(method: Method) -> None:
    logits, labels = data()
    labels[labels == 2] = 1
    assert is_probability(method().fit(logits, labels).predict_proba(logits))


@each
@pytest.mark.parametrize("last_class", [True, False], ids=["all classes", "the last one missing"])
def test_a_long_tail(method: Method, last_class: bool) -> None:
    """Down to three samples of a class, or none: a new sample of it gets a probability, and claims hold."""
    logits, labels = data(1500, 10)
    tail = long_tailed(labels, 0.02)
    tail = tail[(labels[tail] < 9) | last_class]
    assert torch.bincount(labels[tail], minlength=10)[-2:].tolist() == [4, 3 if last_class else 0]
    found = method(prior="same").fit(logits[tail], labels[tail])
    new, truth = data(1000, 10, seed=1)
    log_probs = found(new)
    assert is_probability(log_probs.exp()) and bool(torch.isfinite(log_probs).all())
    if method.preserves_argmax:
        top = log_probs.gather(1, new.argmax(1, keepdim=True)).squeeze(1)
        assert bool((top >= log_probs.amax(1)).all())
    # Nowhere near as bad as the overflow of a class that was learnt to be impossible.
    assert float(-log_probs[truth == 9, 9].mean()) < 30


@each
def test_counting_classes_alike_makes_up_for_a_long_tail(method: Method) -> None:
    """Fitted to a tail by the class-balanced objective, an even test set is met nearly as by a fit to an even set."""
    if not method.takes_objective:
        return
    logits, labels = data(4000, 4)
    tail = long_tailed(labels, 0.05)
    new, truth = data(4000, 4, seed=1)
    settings: Any = {"objective": "class-balanced-nll", "prior": "same"}
    balanced = method(**settings).fit(logits[tail], labels[tail])
    even = method().fit(logits, labels)
    assert nll(balanced.predict_proba(new), truth) < nll(even.predict_proba(new), truth) + 0.02


@each
@few
def test_one_sample_of_each_class(method: Method) -> None:
    logits, _ = data(12, 12)
    found = method().fit(logits, torch.arange(12))
    assert is_probability(found.predict_proba(logits)) and is_probability(found.predict_proba(data(50, 12, seed=1)[0]))


@each
@few
def test_saturated_logits(method: Method) -> None:
    logits, labels = data()
    extreme = torch.where(logits == logits.amax(1, keepdim=True), 1e4, -1e4) + logits
    found = method().fit(extreme, labels)
    assert is_probability(found.predict_proba(extreme))
    assert is_probability(method().fit(logits, labels).predict_proba(extreme))


@each
@few
def test_few_samples_are_enough_or_refused(method: Method) -> None:
    least = method.min_samples
    for n, k in ((least, 3), (max(2, least), 3), (max(3, least), 3), (max(12, least), 20)):
        logits, labels = data(n, k)
        labels = torch.arange(n) % k
        if n == 1:
            with pytest.raises(InputError, match="two classes") if method is not Identity else no_error():
                method().fit(logits, labels)
        else:
            assert is_probability(method().fit(logits, labels).predict_proba(logits))
    if method.min_samples > 1:
        with pytest.raises(InputError, match=f"at least {method.min_samples} samples"):
            method().fit(*data(method.min_samples - 1, 3))


@pytest.mark.parametrize("method", [m for m in CALIBRATORS if m.steady_from > 1], ids=lambda m: m.name)
def test_too_few_samples_to_be_steady_are_a_warning(method: Method) -> None:
    logits, labels = data(method.steady_from, 3)
    assert "double" not in method().fit(logits, labels).info.get("caution", "")
    with pytest.warns(TemperanceWarning, match=f"fewer than about {method.steady_from} samples .* got 20"):
        method().fit(logits[:20], labels[:20])


class no_error:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@each
@few
@pytest.mark.slow
def test_a_thousand_classes_and_fewer_samples(method: Method) -> None:
    logits, labels = data(40, 1000)
    quick: dict[str, Any] = {"sweeps": 1, "off_diagonal": 1e6, "intercept": 1e6}  # the shortest way
    found = method(**{name: value for name, value in quick.items() if name in defaults_of(method)})
    assert is_probability(found.fit(logits, labels).predict_proba(logits))


@each
def test_two_classes(method: Method) -> None:
    logits, labels = data(200, 2)
    assert is_probability(method().fit(logits, labels).predict_proba(logits))


@each
def test_log_probabilities_are_logits_too(method: Method) -> None:
    logits, labels = data()
    log_probs = logits.log_softmax(1)
    assert is_probability(method().fit(log_probs, labels).predict_proba(log_probs))


@each
@few
def test_equal_logits_and_separable_data(method: Method) -> None:
    flat = torch.zeros(60, 3, dtype=torch.float64)
    labels = torch.arange(60) % 3
    assert is_probability(method().fit(flat, labels).predict_proba(flat))
    separable = torch.nn.functional.one_hot(labels, 3).double() * 5 - 1
    assert is_probability(method().fit(separable, labels).predict_proba(separable))


@each
def test_not_fitted_yet(method: Method, tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet: call fit"):
        method().predict_proba([[1.0, -1.0]])
    with pytest.raises(NotFittedError):
        method().save(tmp_path / "no.safetensors")
    assert not list(tmp_path.iterdir())


@each
def test_wrong_input_is_refused(method: Method, fitted: dict[str, Calibrator]) -> None:
    logits, labels = data(60)
    with pytest.raises(InputError, match="are probabilities"):
        fitted[method.name].predict_proba(logits.softmax(1))
    with pytest.raises(InputError, match="fitted on 4 classes; these logits have 5"):
        fitted[method.name].predict_proba(torch.randn(3, 5))
    with pytest.raises(InputError, match="finite"):
        method().fit(torch.full((60, 4), float("nan")), labels)
    if method is not Identity:
        with pytest.raises(InputError, match="are probabilities"):
            method().fit(logits.softmax(1), labels)
        with pytest.raises(InputError, match="two classes"):
            method().fit(logits, torch.zeros(60, dtype=torch.int64))
        with pytest.raises(InputError, match="two classes"):
            method().fit(torch.randn(60, 1), torch.zeros(60, dtype=torch.int64))


@each
def test_settings_are_stored_and_json_able(method: Method) -> None:
    found = method()
    assert found.get_params() == defaults_of(method)
    assert json.loads(json.dumps(found.get_params())) == found.get_params()


@each
def test_documented_and_public(method: Method) -> None:
    assert method.summary and len(method.summary) < 120
    assert getattr(calibrators, method.__name__) is method and method.__name__ in calibrators.__all__


@each
def test_objectives_can_be_chosen_where_claimed(method: Method) -> None:
    if not method.takes_objective:
        return
    logits, labels = data()
    plain = method().fit(logits, labels).predict_proba(logits)
    scaled = method(objective="class-scaled").fit(logits, labels).predict_proba(logits)  # type: ignore[call-arg]
    assert is_probability(scaled) and not torch.equal(plain, scaled)
    with pytest.raises(InputError, match="no objective named"):
        method(objective="no-such").fit(logits, labels)  # type: ignore[call-arg]


@each
@pytest.mark.parametrize("name", [name for name in OBJECTIVES.names if OBJECTIVES[name].whole])
def test_calibration_errors_are_for_maps_that_keep_the_predictions(method: Method, name: str) -> None:
    if not method.takes_objective:
        return
    logits, labels = random_predictions(200, 4, sharpness=3.0)
    if not method.preserves_argmax:
        with pytest.raises(InputError, match="which a constant prediction makes zero"):
            make_calibrator(method.name, objective=name)
        return
    found = method(objective=name).fit(logits, labels)  # type: ignore[call-arg]
    before, after = (float(make_objective(name)(x, labels)) for x in (logits.log_softmax(1), found(logits)))
    assert after < before


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean identity"):
        make_calibrator("identiti")


def test_foreign_and_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "cal.safetensors"
    Identity().fit(*data(20)).save(path)
    whole = path.read_bytes()
    for cut in (0, 4, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(FileError, match=r"cal\.safetensors"):
            load_calibrator(path)
    save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(FileError, match="not a file that temperance saved"):
        load_calibrator(path)
    header: dict[str, Any] = {"temperance": str(FORMAT + 1), "method": "identity", "settings": "{}", "info": "{}"}
    save_file({"n_classes": torch.tensor(2)}, path, metadata=header)
    with pytest.raises(FileError, match="newer than this version reads"):
        load_calibrator(path)
    for wrong in ({"method": "no-such"}, {"settings": "{"}, {"settings": '{"x": 1}'}):
        save_file({"n_classes": torch.tensor(2)}, path, metadata=header | {"temperance": str(FORMAT)} | wrong)
        with pytest.raises(FileError):
            load_calibrator(path)
    with pytest.raises(FileError, match="does not exist"):
        load_calibrator(tmp_path / "nowhere.safetensors")
