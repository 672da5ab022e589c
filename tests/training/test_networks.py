"""What every registered network must do, read from the registry: none is exempt by name."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temperance.errors import InputError
from temperance.training.networks import NETWORKS, Architecture, Network, make_network

each_network = pytest.mark.parametrize("kind", list(NETWORKS), ids=NETWORKS.names)


@pytest.fixture(scope="module", params=NETWORKS.names)
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    """Each network in turn, made once for all tests that need its numbers."""
    yield made(request.param)


def images(n: int = 2, size: int = 8, channels: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(n, channels, size, size, generator=torch.Generator().manual_seed(seed))


def made(name: str, seed: int = 0, **settings: Any) -> Network:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return make_network(name, **{"classes": 7, "image_size": 8, **settings})


@functools.cache
def unmade(name: str, **settings: Any) -> Network:
    """A network without numbers in it, which takes no time to make."""
    with torch.device("meta"):
        return make_network(name, **{"classes": 10, **settings})


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-4 * float(expected.detach().abs().max()))


def n_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# ------------------------------------------------------------------------------------------------------------- claims


@each_network
def test_the_claimed_number_of_parameters(kind: Architecture) -> None:
    assert round(n_parameters(unmade(kind.name)) / 1e6, 2) == kind.millions


@pytest.mark.parametrize(
    ("name", "settings", "published"),
    [
        ("resnet18", {"classes": 1000, "image_size": 224}, 11_689_512),
        ("resnet34", {"classes": 1000, "image_size": 224}, 21_797_672),
        ("resnet50", {"classes": 1000, "image_size": 224}, 25_557_032),
        ("resnet101", {"classes": 1000, "image_size": 224}, 44_549_160),
        ("resnet18", {}, 11_173_962),
        ("resnet110", {}, 1_727_962),
        ("wrn-28-10", {}, 36_479_194),
        ("wrn-28-10", {"classes": 100}, 36_536_884),
        ("densenet121", {}, 6_956_298),
    ],
)
def test_parameters_to_the_last_one(name: str, settings: dict[str, int], published: int) -> None:
    assert n_parameters(unmade(name, **settings)) == published


def test_ends_as_the_tiny_imagenet_variant_for_images_of_64_pixels() -> None:
    assert unmade("resnet50", image_size=64, classes=200).classifier.weight.shape == (200, 2048 * 4)
    assert unmade("resnet110", image_size=64, classes=200).classifier.weight.shape == (200, 64)


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("resnet18", 18),
        ("resnet34", 34),
        ("resnet50", 50),
        ("resnet101", 101),
        ("resnet110", 110),
        ("resnet110-bottleneck", 110),
        ("wrn-26-10", 26),
        ("wrn-28-10", 28),
        ("wrn-32-10", 34),
        ("preresnet56", 56),
        ("densenet40", 40),
        ("densenet121", 121),
    ],
)
def test_as_deep_as_its_name_says(name: str, layers: int) -> None:
    network = unmade(name)
    # Wide ResNets count the 1×1 convolutions of two shortcuts, and the WRN-32 of the logit collections does not.
    counted = [m for n, m in network.named_modules() if isinstance(m, nn.Conv2d) and "shortcut" not in n]
    more = 2 if name in ("wrn-28-10", "wrn-32-10") else 0
    assert len(counted) + 1 + more == layers


# ----------------------------------------------------------------------------------------------------------- contract


def test_logits_are_the_classifier_on_features(network: Network) -> None:
    network.eval()
    x = images()
    with torch.no_grad():
        features, logits = network.features(x), network(x)
    assert features.shape == (2, network.n_features)
    assert logits.shape == (2, 7)
    assert torch.equal(network.classifier(features), logits)
    assert logits.isfinite().all()
    assert not torch.equal(logits[0], logits[1])


def test_evaluation_is_deterministic_and_of_each_image_by_itself(network: Network) -> None:
    network.eval()
    before = {name: value.clone() for name, value in network.state_dict().items() if "running" in name}
    x = images(3)
    with torch.no_grad():
        together = network(x)
        assert torch.equal(network(x), together)
        assert close(torch.cat([network(x[:1]), network(x[1:])]), together)
    after = network.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_half_precision_and_channels_last(network: Network) -> None:
    network.eval()
    x = images(1)
    with torch.no_grad():
        expected = network(x)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.contiguous(memory_format=torch.channels_last)
        assert close(network(x), expected)
        with torch.autocast("cpu", torch.bfloat16):
            found = network(x)
    assert found.dtype == torch.bfloat16
    assert found.isfinite().all()


def test_gradient_reaches_all_parameters(network: Network) -> None:
    network.train()
    F.cross_entropy(network(images()), torch.tensor([1, 4])).backward()  # type: ignore[no-untyped-call]
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # Stochastic depth leaves blocks out; their gradient is zero.
        assert parameter.grad.any() or "survival" in network.settings, name


@each_network
def test_takes_images_of_any_size(kind: Architecture) -> None:
    network = unmade(kind.name, image_size=64, channels=1).eval()
    assert network(torch.empty(1, 1, 33, 40, device="meta")).shape == (1, 10)


@pytest.mark.parametrize("size", [8, 28, 64, 72, 128])
def test_features_of_sizes_with_a_variant_of_their_own(size: int) -> None:
    network = made("resnet18", image_size=size, channels=1).eval()
    with torch.no_grad():
        x = images(1, size, 1)
        maps = network.blocks(network.stem(x))
        expected = F.adaptive_avg_pool2d(maps, 2 if 64 <= size < 128 else 1).flatten(1)
        assert torch.allclose(network.features(x), expected, rtol=1e-4, atol=1e-5)


@each_network
def test_is_made_again_from_its_settings(kind: Architecture) -> None:
    network = unmade(kind.name, image_size=64, channels=1)
    again = unmade(network.name, **network.settings)
    assert network.name == kind.name
    shapes = [{name: value.shape for name, value in one.state_dict().items()} for one in (network, again)]
    assert shapes[0] == shapes[1]
    assert network.settings.keys() == {"classes", "image_size", "channels", *kind.settings}


@pytest.mark.parametrize("kind", [kind for kind in NETWORKS if kind.millions < 5], ids=lambda kind: kind.name)
def test_weights_come_from_torchs_generator(kind: Architecture) -> None:
    first, again, other = made(kind.name, 1), made(kind.name, 1), made(kind.name, 2)
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        # BatchNorm and biases start from ones and zeros.
        assert a.ndim == 1 or not torch.equal(a, c)


def test_convolutions_keep_the_variance_of_gradients() -> None:
    for module in made("preresnet56").modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 5_000:
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert float(module.weight.detach().var()) == pytest.approx(2 / fan_out, rel=0.1)


@each_network
def test_groups_hold_every_parameter_once_and_in_order(kind: Architecture) -> None:
    network = unmade(kind.name)
    groups = network.groups()
    in_groups = list(itertools.chain.from_iterable(group.parameters() for group in groups))
    assert [id(p) for p in in_groups] == [id(p) for p in network.parameters()]
    assert groups[-1] is network.classifier
    assert all(n_parameters(group) for group in groups)


@pytest.mark.parametrize("training", [False, True])
def test_blocks_compile_as_one_graph(training: bool) -> None:
    torch.manual_seed(0)
    for name, place, channels in (
        ("resnet110-sd", -1, 64),
        ("resnet110", 18, 16),
        ("preresnet56", 9, 16),
        ("densenet40", 0, 16),
    ):
        block = made(name).blocks[place].train(training)
        x = images(2, 8, channels)
        torch.compiler.reset()
        torch.manual_seed(1)
        expected = block(x)
        torch.manual_seed(1)
        assert close(torch.compile(block, backend="eager", fullgraph=True)(x), expected)


@pytest.mark.parametrize("name", ["small-cnn", "small-resnet"])
def test_networks_compile_as_one_graph(name: str) -> None:
    torch.compiler.reset()
    network = made(name)
    assert close(torch.compile(network, backend="eager", fullgraph=True)(images()), network(images()))


# ------------------------------------------------------------------------------------------------ single architectures


def test_the_small_plain_network_treats_every_image_by_itself() -> None:
    network = made("small-cnn").train()
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    x = images(4)
    assert torch.allclose(torch.cat([network(x[:1]), network(x[1:])]), network(x), atol=1e-6)


def test_blocks_are_dropped_as_often_as_claimed() -> None:
    network = made("resnet110-sd")
    rates = [float(block.survival) for block in network.blocks]  # type: ignore[arg-type]
    assert rates == pytest.approx([1 - 0.5 * number / 54 for number in range(1, 55)])
    block = network.blocks[-1].train()
    x = torch.rand(1, 64, 4, 4)
    torch.manual_seed(3)
    with torch.no_grad():
        left_out = [torch.equal(block(x), x) for _ in range(400)]
    assert sum(left_out) / 400 == pytest.approx(0.5, abs=0.08)


def test_in_evaluation_a_block_counts_as_much_as_it_did_on_average() -> None:
    always, half = made("resnet110-sd", survival=1.0), made("resnet110-sd", survival=0.5)
    half.load_state_dict(always.state_dict())
    x = torch.rand(2, 64, 4, 4)
    with torch.no_grad():
        blocks = [network.blocks[-1].eval() for network in (always, half)]
        for block in blocks:
            block.get_parameter("bn2.bias").fill_(100)  # so that no ReLU cuts anything off
        full, part = (block(x) for block in blocks)
    assert torch.allclose(part - x, 0.5 * (full - x), atol=1e-3)


def test_without_stochastic_depth_it_is_the_plain_network() -> None:
    plain, certain = made("resnet110").eval(), made("resnet110-sd", survival=1.0).eval()
    assert torch.equal(plain(images()), certain(images()))


def test_parameterless_shortcuts_keep_the_input() -> None:
    shortcut = made("resnet110").blocks[18].shortcut
    x = images(2, 7, 16)
    found = shortcut(x)  # type: ignore[operator]
    assert found.shape == (2, 32, 4, 4)
    assert torch.equal(found[:, :16], x[:, :, ::2, ::2])
    assert not found[:, 16:].any()


def test_dropout_is_only_for_training() -> None:
    network, without = unmade("wrn-28-10", dropout=0.3), unmade("wrn-28-10")
    assert {block.dropout for block in network.blocks} == {0.3}
    assert {block.dropout for block in without.blocks} == {0.0}
    block = type(network.blocks[0])(4, 4, 1, 0.5)
    x = images(1, 8, 4)
    assert torch.equal(block.eval()(x), block(x))
    assert not torch.equal(block.train()(x), block(x))


def test_a_dense_layer_keeps_its_input() -> None:
    network = made("densenet40").eval()
    x = torch.rand(1, 16, 8, 8)
    found = network.blocks[0](x)
    assert found.shape == (1, 28, 8, 8)
    assert torch.equal(found[:, :16], x)


# -------------------------------------------------------------------------------------------------------------- errors


@each_network
def test_images_it_cannot_take_are_refused_in_a_sentence(kind: Architecture) -> None:
    network = unmade(kind.name)
    pixels = torch.empty(2, 3, 32, 32, device="meta")
    for wrong in (pixels[:, :1], pixels[0], pixels.to(torch.uint8), pixels.permute(0, 2, 3, 1)):
        with pytest.raises(InputError, match=r"images must be normalised numbers \(n, 3, height, width\); got torch"):
            network(wrong)


def test_an_unknown_name_is_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match="there is no network named 'resnet81'; did you mean resnet18"):
        make_network("resnet81", classes=10)
