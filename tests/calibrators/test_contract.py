"""What every registered calibrator must do, read from the registry: none is exempt by name.

As a part of a network and on hard data: test_networks_contract and test_data_contract.
"""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from calibrators.fits import Method, another, data, each, fitted, is_probability
from conftest import random_predictions
from temperance import calibrators
from temperance.calibrators import CALIBRATORS, Identity, Temperature, load_calibrator, make_calibrator
from temperance.calibrators.stored import FORMAT
from temperance.errors import FileError, InputError, NotFittedError
from temperance.objectives import OBJECTIVES, make_objective
from temperance.settings import defaults_of

each_with_objective = pytest.mark.parametrize(
    "method", [method for method in CALIBRATORS if method.takes_objective], ids=lambda method: method.name
)


@each
def test_rows_are_probabilities_of_every_kind_of_input(method: Method) -> None:
    logits, _ = data(100, seed=1)
    found = fitted(method)
    probs = found.predict_proba(logits)
    assert probs.shape == logits.shape and probs.dtype == torch.float64 and is_probability(probs)
    as_numpy = found.predict_proba(logits.numpy())
    assert isinstance(as_numpy, np.ndarray) and np.array_equal(as_numpy, probs.numpy())
    assert np.array_equal(found.predict_proba(logits.tolist()), as_numpy)
    assert is_probability(found.predict_proba(logits.half()))


@each
def test_fit_takes_every_kind_of_input(method: Method) -> None:
    logits, labels = data()
    probs = fitted(method).predict_proba(logits)
    names = np.array(["cat", "cow", "dog", "hen"])
    named = method().fit(logits.numpy(), names[labels].tolist())
    assert torch.equal(named.predict_proba(logits), probs) and named.classes_.tolist() == names.tolist()
    assert np.array_equal(named.predict(logits), names[fitted(method).predict(logits)])
    assert named.score(logits, names[labels]) == named.score(logits, labels) == fitted(method).score(logits, labels)
    dense = logits.reshape(12, 20, 4).movedim(-1, 1)
    assert torch.equal(method().fit(dense, labels.int().reshape(12, 20)).predict_proba(logits), probs)
    marked = torch.cat([labels, torch.full((20,), 255)]).reshape(13, 20)
    padded = torch.cat([logits, torch.zeros(20, 4)]).reshape(13, 20, 4).movedim(-1, 1)
    assert torch.equal(method().fit(padded, marked, ignore_index=255).predict_proba(logits), probs)
    with pytest.raises(InputError, match="every label is ignore_index=255: there is nothing to fit"):
        method().fit(padded, torch.full_like(marked, 255), ignore_index=255)


@pytest.mark.parametrize("scale", [4.0, 1e4, 1e9])
@pytest.mark.parametrize("method", [method for method in CALIBRATORS if method.scale_free], ids=lambda m: m.name)
def test_the_scale_of_logits_does_not_matter(method: Method, scale: float) -> None:
    logits, labels = data()
    new, _ = data(50, seed=1)
    found = method().fit(scale * logits, labels).predict_proba(scale * new)
    assert torch.allclose(found, fitted(method).predict_proba(new), rtol=0, atol=1e-5)


@each
def test_refitting_forgets_and_leaves_inputs_and_global_state_alone(method: Method) -> None:
    logits, labels = data()
    before = logits.clone(), labels.clone(), torch.get_rng_state(), torch.get_default_dtype()
    found = copy.deepcopy(another(method)).fit(logits, labels)
    assert torch.equal(logits, before[0]) and torch.equal(labels, before[1])
    assert torch.equal(torch.get_rng_state(), before[2]) and torch.get_default_dtype() is before[3]
    new, _ = data(50, seed=1)
    assert torch.equal(found.predict_proba(new), fitted(method).predict_proba(new))
    assert found.state_dict().keys() == fitted(method).state_dict().keys()


@each
def test_saving_and_loading_is_bit_equal(method: Method, tmp_path: Path) -> None:
    found = fitted(method)
    found.save(tmp_path / "cal.safetensors")
    back = load_calibrator(tmp_path / "cal.safetensors")
    logits, _ = data(100, seed=1)
    assert type(back) is method and back.get_params() == found.get_params()
    assert torch.equal(back.predict_proba(logits), found.predict_proba(logits))
    assert back.info == json.loads(json.dumps(found.info))


def test_class_names_are_saved_and_forgotten(tmp_path: Path) -> None:
    logits, labels = data()
    named = Temperature().fit(logits, [f"class {label}" for label in labels.tolist()])
    named.save(tmp_path / "named.safetensors")
    back = load_calibrator(tmp_path / "named.safetensors")
    assert back.classes_.tolist() == ["class 0", "class 1", "class 2", "class 3"]
    assert back.predict(logits[:3].reshape(1, 4, 3)).shape == (1, 3)
    assert back.fit(logits, labels).classes_.tolist() == [0, 1, 2, 3]


def test_text_that_cannot_be_labels_is_refused() -> None:
    logits, labels = data()
    with pytest.raises(InputError, match="one for each of the 4 columns of the logits; these name 3"):
        Temperature().fit(logits, np.array(["a", "b", "c", "c"])[labels])
    found = Temperature().fit(logits, np.array(["a", "b", "c", "d"])[labels])
    with pytest.raises(InputError, match="labels must be among the classes 'a', 'b', 'c', 'd'; got 'cow'"):
        found.score(logits, ["a"] * 239 + ["cow"])
    with pytest.raises(InputError, match="labels are text, but the calibrator was fitted to class numbers"):
        fitted(Temperature).score(logits, ["a"] * 240)
    many, numbers = data(240, 12)
    with pytest.raises(InputError, match="labels are numbers as text, which sort as '0', '1', '10', …"):
        Temperature().fit(many, [str(number) for number in numbers.tolist()])


@each
def test_scikit_learn_clones_it(method: Method) -> None:
    sklearn = pytest.importorskip("sklearn.base", reason="scikit-learn is not installed")
    made = method(**{name: value for name, value in defaults_of(method).items() if name != "seed"})
    copied = sklearn.clone(made)
    assert type(copied) is method and copied is not made
    assert copied.get_params(deep=True) == copied.get_params(deep=False) == made.get_params()
    fresh = sklearn.clone(fitted(method))  # settings alone, not what was learnt
    with pytest.raises(NotFittedError):
        fresh.predict_proba([[1.0, -1.0]])


@each
def test_scikit_learn_takes_it_as_a_classifier(method: Method) -> None:
    sklearn = pytest.importorskip("sklearn.base", reason="scikit-learn is not installed")
    assert sklearn.is_classifier(method()) and not hasattr(method(), "classes_")
    found = fitted(method)
    logits, labels = data(100, seed=1)
    assert found.classes_.tolist() == [0, 1, 2, 3]
    assert np.array_equal(found.predict(logits.numpy()), found.predict_proba(logits.numpy()).argmax(1))
    assert torch.equal(found.predict(logits), torch.from_numpy(found.predict(logits.numpy())))
    assert found.score(logits, labels) == pytest.approx(float((found.predict(logits) == labels).double().mean()))
    dense = logits.reshape(5, 20, 4).movedim(-1, 1)
    assert torch.equal(found.predict(dense), found.predict(logits).reshape(5, 20))


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
def test_preserving_the_argmax_is_a_claim(method: Method) -> None:
    if not method.preserves_argmax:
        return
    for scale in (0.1, 1.0, 30.0):
        logits = torch.randn(2000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(5)) * scale
        probs = fitted(method).predict_proba(logits)
        top = probs.gather(1, logits.argmax(1, keepdim=True)).squeeze(1)
        assert bool((top >= probs.amax(1)).all())


@each
def test_not_fitted_yet(method: Method, tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="not fitted yet: call fit"):
        method().predict_proba([[1.0, -1.0]])
    with pytest.raises(NotFittedError):
        method().save(tmp_path / "no.safetensors")
    assert not list(tmp_path.iterdir())


@each
def test_wrong_input_is_refused(method: Method) -> None:
    logits, labels = data(60)
    with pytest.raises(InputError, match="are probabilities"):
        fitted(method).predict_proba(logits.softmax(1))
    with pytest.raises(InputError, match="fitted on 4 classes; these logits have 5"):
        fitted(method).predict_proba(torch.randn(3, 5))
    with pytest.raises(InputError, match=r"logits must have shape \(n, 4\) or \(n, 4, ...\); got \(4,\)"):
        fitted(method)(torch.randn(4))
    with pytest.raises(InputError, match="finite"):
        method().fit(torch.full((60, 4), float("nan")), labels)
    if method is not Identity:
        with pytest.raises(InputError, match="are probabilities"):
            method().fit(logits.softmax(1), labels)
        with pytest.raises(InputError, match="two classes"):
            method().fit(logits, torch.zeros(60, dtype=torch.int64))
        with pytest.raises(InputError, match="two classes"):
            method().fit(torch.randn(60, 1), torch.zeros(60, dtype=torch.int64))


# ---------------------------------------------------------------------------------------------------------- objectives


@each_with_objective
def test_objectives_and_their_settings_can_be_chosen(method: Method, tmp_path: Path) -> None:
    found = method()
    found.set_params(objective="class-scaled", objective__normalise="mm").set_params(objective__ddof=0)
    assert found.get_params()["objective"] == "class-scaled:normalise=mm:ddof=0"
    assert found.get_params()["objective__normalise"] == "mm" and found.get_params()["objective__step"] == "paper"
    assert not any("__" in name for name in found.get_params(deep=False))
    logits, labels = data()
    scaled = found.fit(logits, labels).predict_proba(logits)
    assert is_probability(scaled) and not torch.equal(scaled, fitted(method).predict_proba(logits))
    found.save(tmp_path / "cal.safetensors")
    assert load_calibrator(tmp_path / "cal.safetensors").get_params() == found.get_params()
    with pytest.raises(InputError, match="no setting of class-scaled named 'normalize'; did you mean normalise"):
        found.set_params(objective__normalize="mm")
    with pytest.raises(InputError, match="no objective named"):
        method(objective="no-such").fit(logits, labels)  # type: ignore[call-arg]


@each_with_objective
@pytest.mark.parametrize("name", [name for name in OBJECTIVES.names if OBJECTIVES[name].whole])
def test_calibration_errors_are_for_maps_that_keep_the_predictions(method: Method, name: str) -> None:
    logits, labels = random_predictions(200, 4, sharpness=3.0)
    if not method.preserves_argmax:
        with pytest.raises(InputError, match="which a constant prediction makes zero"):
            make_calibrator(method.name, objective=name)
        return
    found = method(objective=name).fit(logits, labels)  # type: ignore[call-arg]
    before, after = (float(make_objective(name)(x, labels)) for x in (logits.log_softmax(1), found(logits)))
    assert after < before


# --------------------------------------------------------------------------------------------------------------- files


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
    with pytest.raises(FileError, match="not a calibrator saved by temperance"):
        load_calibrator(path)
    header: dict[str, Any] = {"temperance": str(FORMAT + 1), "method": "identity", "settings": "{}", "info": "{}"}
    save_file({"n_classes": torch.tensor(2)}, path, metadata=header)
    with pytest.raises(FileError, match="this version reads formats up to"):
        load_calibrator(path)
    for wrong in ({"method": "no-such"}, {"settings": "{"}, {"settings": '{"x": 1}'}):
        save_file({"n_classes": torch.tensor(2)}, path, metadata=header | {"temperance": str(FORMAT)} | wrong)
        with pytest.raises(FileError):
            load_calibrator(path)
    with pytest.raises(FileError, match="does not exist"):
        load_calibrator(tmp_path / "nowhere.safetensors")
