"""Any network as body and classifier: finding the classifier, the body, another head, and what is refused."""

from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from other_networks import (
    NETS,
    LeNetLike,
    ResNetLike,
    Then,
    TimmLike,
    TransformerLike,
    TwoHeads,
    TwoNames,
    VGGLike,
)
from temperance.errors import InputError
from temperance.heads.splitting import evaluating, split
from temperance.training.networks import NETWORKS, make_network

each_net = pytest.mark.parametrize(("make", "name", "d"), NETS.values(), ids=NETS.keys())


def images(n: int = 3) -> Tensor:
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def state(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def n_hooks(network: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in network.modules())


# --------------------------------------------------------------------------------------------------------------- parts


@each_net
def test_classifier_on_body_is_the_network(make: Any, name: str, d: int) -> None:
    network = make().eval()
    before, x = state(network), images()
    logits = network(x)
    parts = split(network)
    assert parts.name == name
    assert parts.classifier is network.get_submodule(name)
    features = parts.body(x)
    assert features.shape == (3, d)
    assert torch.allclose(parts.classifier(features), logits, atol=1e-6)
    # And the network is what it was.
    assert state(network).keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert n_hooks(network) == 0
    assert not any(module.training for module in network.modules())
    assert torch.equal(network(x), logits)


@each_net
def test_another_head_takes_the_classifiers_place(make: Any, name: str, d: int) -> None:
    network = make().eval()
    before, x = state(network), images()
    logits, features = network(x), split(network).body(x)
    head = nn.Sequential(nn.Linear(d, 2), nn.Tanh(), nn.Linear(2, 6)).eval()
    joined = split(network).joined(head)
    assert torch.allclose(joined(x), head(features), atol=1e-6)
    assert torch.equal(network(x), logits)
    # Its state is the network's, with the head's in place of the classifier's.
    own = {key for key in before if not key.startswith((f"{name}.", "inner."))}
    found = joined.state_dict()
    assert own == {key for key in found if not key.startswith((f"{name}.", "inner."))}
    assert {f"{name}.0.weight", f"{name}.2.bias"} <= found.keys()
    for key in own:
        assert found[key].data_ptr() == network.state_dict()[key].data_ptr(), key
    assert joined.get_submodule(name) is head
    assert network.get_submodule(name) is split(network).classifier


@each_net
def test_joined_with_its_own_classifier_it_is_the_network(make: Any, name: str, d: int) -> None:
    network = make().eval()
    parts = split(network)
    assert torch.equal(parts.joined(parts.classifier)(images()), network(images()))


@pytest.mark.parametrize("name", NETWORKS.names)
def test_splits_every_network_of_temperance(name: str) -> None:
    with torch.device("meta"):
        network = make_network(name, classes=10)
    parts = split(network)
    assert parts.name == "classifier"
    assert parts.classifier is network.classifier


def test_a_joined_network_moves_with_the_original() -> None:
    network = TransformerLike()
    joined = split(network).joined(nn.Linear(12, 2))
    joined.double()
    assert {p.dtype for p in network.encoder.parameters()} == {torch.float64}
    assert network.token.dtype == torch.float64
    assert network.scale.dtype == torch.float64
    assert network.heads.head.weight.dtype == torch.float32  # type: ignore[union-attr]


def test_a_head_moves_to_the_device_of_the_classifier() -> None:
    head = nn.Linear(6, 2)
    split(ResNetLike().to("meta")).joined(head)
    assert head.weight.device.type == "meta"


def test_a_joined_network_has_its_own_hooks() -> None:
    network = ResNetLike()
    joined = split(network).joined(nn.Linear(6, 2))
    joined.register_forward_hook(lambda *_: None)
    assert n_hooks(network) == 0


def patched(network: ResNetLike) -> ResNetLike:
    """With a method of this object in place of the class's, as accelerate puts one."""
    network.forward = MethodType(lambda self, x: ResNetLike.forward(self, x), network)  # type: ignore[method-assign]
    return network


def compiled_in_place(network: ResNetLike) -> ResNetLike:
    network.compile(backend="eager")
    return network


@pytest.mark.parametrize("change", [patched, compiled_in_place, torch.fx.symbolic_trace])
def test_a_joined_network_calls_its_own_head(change: Any) -> None:
    """Whatever the network's object has in place of its class's methods."""
    network, head, x = change(ResNetLike().eval()), nn.Linear(6, 4), images()
    features, logits = split(network).body(x), network(x)
    assert torch.allclose(split(network).joined(head)(x), head(features), atol=1e-6)
    assert torch.equal(network(x), logits)


def test_a_network_whose_forward_is_a_function_cannot_have_another_head() -> None:
    network = ResNetLike()
    original = network.forward
    network.forward = lambda x: original(x)  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"forward of this ResNetLike was replaced .*`del network.forward` restores"):
        split(network).joined(nn.Linear(6, 4))
    del network.forward
    assert split(network).joined(nn.Linear(6, 2))(images()).shape == (3, 2)


def test_a_joined_head_is_trained_and_the_classifier_is_not() -> None:
    network = ResNetLike()
    head = nn.Linear(6, 4)
    split(network).joined(head)(images()).sum().backward()
    assert head.weight.grad is not None
    assert network.conv1.weight.grad is not None
    assert network.fc.weight.grad is None


def test_the_body_renews_statistics_only_in_training() -> None:
    network = ResNetLike()
    body = split(network).body
    assert network.bn1.running_mean is not None
    body.eval()
    body(images())
    assert not network.bn1.running_mean.any()
    body.train()
    body(images())
    assert network.bn1.running_mean.any()


def test_dropout_is_part_of_the_body() -> None:
    network = VGGLike()
    body = split(network).body
    assert (body(images(50)) == 0).sum() > 100
    body.eval()
    assert torch.equal(body(images()), body(images()))


def test_the_body_follows_the_mode_of_its_network() -> None:
    network = TransformerLike()
    parts = split(network)
    network.eval()
    assert not parts.body.training
    body = parts.body
    assert torch.equal(body(images()), body(images()))
    network.train()
    assert not torch.equal(body(images()), body(images()))


def test_the_body_passes_gradients_on() -> None:
    network = LeNetLike()
    split(network).body(images()).sum().backward()
    assert network.fc1.weight.grad is not None
    assert network.fc3.weight.grad is None


def test_wrapped_networks_are_unwrapped() -> None:
    network = ResNetLike().eval()
    compiled = torch.compile(network, backend="eager")
    assert split(compiled).network is network  # type: ignore[arg-type]
    assert split(nn.DataParallel(network)).network is network


def test_in_half_precision_features_are_what_the_classifier_was_given() -> None:
    network = Then(lambda z: z.float()).eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert split(network).body(images()).shape == (3, 192)
    network = ResNetLike().bfloat16().eval()  # type: ignore[assignment]
    assert split(network).body(images().bfloat16()).dtype == torch.bfloat16


def test_evaluating_gives_every_part_its_mode_back() -> None:
    network = VGGLike()
    network.features.eval()
    with evaluating(network):
        assert not any(module.training for module in network.modules())
    assert network.training and network.classifier.training
    assert not network.features.training
    with pytest.raises(ZeroDivisionError), evaluating(network):
        _ = 1 / 0
    assert network.training


def test_trying_an_example_leaves_the_network_unchanged() -> None:
    network = ResNetLike()
    before = state(network)
    split(network, example=images())
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


# ------------------------------------------------------------------------------------------------------- named by hand


def test_a_named_classifier() -> None:
    network = TwoHeads(both=False)
    assert split(network, "aux").classifier is network.aux
    assert split(VGGLike(), "classifier").name == "classifier.3"
    assert split(VGGLike(), "classifier.0").name == "classifier.0"
    assert split(TimmLike(), "head").name == "head.fc"
    assert split(TwoNames(), "inner").name == "fc"
    assert split(TwoNames(), "inner.same").name == "fc"


@pytest.mark.parametrize(
    ("make", "name", "says"),
    [
        (ResNetLike, "fcc", "there is no linear layer in the network named 'fcc'; did you mean fc"),
        (VGGLike, "classifier.9", "did you mean classifier.3 or classifier.0"),
        (VGGLike, "top", "there is no linear layer in the network named 'top'; known: classifier.0, classifier.3"),
        (ResNetLike, "conv1", r"the classifier must be a linear layer \(nn.Linear\); conv1 is a Conv2d"),
        (VGGLike, "features", "features is a Sequential"),
        (lambda: nn.Conv2d(3, 4, 3), None, "must end with a linear layer .* to be split; this Conv2d has none"),
        (lambda: nn.Sequential(nn.Linear(4, 1)), None, "a classifier must have at least two classes; 0 has 1"),
    ],
)
def test_layers_that_cannot_be_the_classifier_are_refused(make: Any, name: str | None, says: str) -> None:
    with pytest.raises(InputError, match=says):
        split(make(), name)


TWICE = "the network must call its classifier fc once per batch; it called it 2 times: name another layer"
NEVER = "the network must call its classifier aux once per batch; it called it never"
LAST = r"the network must return what its classifier fc returns, \(3, 4\); it returns "


@pytest.mark.parametrize(
    ("make", "name", "says"),
    [
        (lambda: Then(lambda z: z.softmax(1)), None, LAST + r"other numbers \(3, 4\): name the last layer"),
        (lambda: Then(lambda z: z / 2), None, LAST + "other numbers"),
        (lambda: Then(lambda z: z[:, :2]), None, LAST + r"other numbers \(3, 2\)"),
        (lambda: Then(lambda z: {"logits": z}), None, LAST + "a dict"),
        (lambda: TwoHeads(both=True), None, r"its classifier head returns, \(3, 4\); it returns a tuple"),
        (lambda: TwoHeads(both=False), "aux", NEVER),
        (LeNetLike, "fc2", r"its classifier fc2 returns, \(3, 5\); it returns other numbers \(3, 4\)"),
        (
            lambda: TransformerLike(all_tokens=True),
            None,
            r"must be features \(n, d\), one row per image; it was",
        ),
    ],
)
def test_a_classifier_with_layers_after_it_is_refused(make: Any, name: str | None, says: str) -> None:
    network = make()
    for use in (lambda: split(network, name, example=images()), lambda: split(network, name).body(images())):
        with pytest.raises(InputError, match=says):
            use()
    assert n_hooks(network) == 0


def test_a_classifier_that_is_called_twice_is_refused() -> None:
    network = Then(None)
    network.do = lambda z: (z + network.fc(torch.zeros(len(z), 192))) / 2
    with pytest.raises(InputError, match=TWICE):
        split(network, example=images())


def test_no_hook_stays_behind_when_the_network_fails() -> None:
    network = ResNetLike()
    with pytest.raises(RuntimeError):
        split(network).body(torch.zeros(1, 2, 8, 8))
    assert n_hooks(network) == 0


def test_a_head_must_be_a_module() -> None:
    with pytest.raises(InputError, match="a head must be a module that turns features into logits; got function"):
        split(ResNetLike()).joined(lambda x: x)  # type: ignore[arg-type]
