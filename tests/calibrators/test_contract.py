"""What every registered calibrator must do, read from the registry: none is exempt by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from conftest import random_predictions
from temperance import calibrators
from temperance.calibrators import CALIBRATORS, Calibrator, Identity, load_calibrator, make_calibrator
from temperance.calibrators.base import FORMAT, settings_of
from temperance.data.longtail import long_tailed
from temperance.errors import FileError, InputError, NotFittedError
from temperance.metrics import nll

each = pytest.mark.parametrize("method", list(CALIBRATORS), ids=CALIBRATORS.names)
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
        single = found(network[0](features).float())
    assert single.dtype == torch.float32 and torch.allclose(single.exp().double(), expected, atol=1e-3)
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


@pytest.mark.parametrize("name", ["temperature", "isotonic", "auto"])
def test_a_network_with_it_is_exported(name: str, fitted: dict[str, Calibrator]) -> None:
    """Whole, and for any number of samples."""
    network = torch.nn.Sequential(torch.nn.Linear(6, 4), fitted[name])
    features = torch.randn(30, 6, generator=torch.Generator().manual_seed(0))
    found = torch.export.export(network, (features[:7],), dynamic_shapes=({0: torch.export.Dim("n")},))
    assert torch.allclose(found.module()(features), network(features))


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
    found = method().fit(logits[tail], labels[tail])
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
    balanced = method(objective="class-balanced-nll").fit(logits[tail], labels[tail])  # type: ignore[call-arg]
    even = method().fit(logits, labels)
    assert nll(balanced.predict_proba(new), truth) < nll(even.predict_proba(new), truth) + 0.02


@each
def test_one_sample_of_each_class(method: Method) -> None:
    logits, _ = data(12, 12)
    found = method().fit(logits, torch.arange(12))
    assert is_probability(found.predict_proba(logits)) and is_probability(found.predict_proba(data(50, 12, seed=1)[0]))


@each
def test_saturated_logits(method: Method) -> None:
    logits, labels = data()
    extreme = torch.where(logits == logits.amax(1, keepdim=True), 1e4, -1e4) + logits
    found = method().fit(extreme, labels)
    assert is_probability(found.predict_proba(extreme))
    assert is_probability(method().fit(logits, labels).predict_proba(extreme))


@each
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


class no_error:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@each
@pytest.mark.slow
def test_a_thousand_classes_and_fewer_samples(method: Method) -> None:
    logits, labels = data(40, 1000)
    quick = {"sweeps": 1, "off_diagonal": 1e6, "intercept": 1e6}  # the shortest way
    found = method(**{name: value for name, value in quick.items() if name in settings_of(method)})
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
    assert found.get_params() == settings_of(method)
    assert json.loads(json.dumps(found.get_params())) == found.get_params()
    with pytest.raises(InputError, match=f"setting of {method.name}"):
        make_calibrator(method.name, no_such_setting=1)


@each
def test_a_setting_of_the_wrong_type_is_refused_at_once(method: Method) -> None:
    for setting in settings_of(method):
        with pytest.raises(InputError, match=f"^{method.name}: {setting} must be .*; got 1j$"):
            make_calibrator(method.name, **{setting: 1j})
        with pytest.raises(InputError, match=f"{setting} must be"):
            method(**{setting: 1j}).fit(*data())


@each
def test_a_value_that_makes_no_sense_is_refused_at_once(method: Method) -> None:
    """Whatever value of a setting `fit` refuses is refused when the calibrator is made."""
    for setting, default in settings_of(method).items():
        wrong: Any = {str: "no-such", int: -1, float: -1.0}.get(type(default))
        if wrong is None:
            continue
        try:
            method(**{setting: wrong}).fit(*data())
        except InputError:
            with pytest.raises(InputError, match=f"^{method.name}: "):
                make_calibrator(method.name, **{setting: wrong})
        else:
            assert setting == "seed", f"{method.name} takes {wrong!r} for {setting}"


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
