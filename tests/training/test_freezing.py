"""Progressive freezing: which groups, from which epoch, and that frozen means frozen."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from temperance.errors import InputError
from temperance.training.freezing import ProgressiveFreezing, freezing_epochs
from temperance.training.networks import NETWORKS, make_network


def network(name: str) -> nn.Module:
    with torch.device("meta"):
        return make_network(name, classes=10)


def prefixes(freezing: ProgressiveFreezing) -> list[int]:
    """How many parameters the groups hold up to each."""
    return [sum(map(len, freezing.groups[:number])) for number in range(1, len(freezing.groups) + 1)]


def test_epochs_as_published(vectors: Any) -> None:
    found = vectors["plp_freeze_epochs"]
    epochs, groups = found["epochs"], found["L"]
    assert [*freezing_epochs(epochs, groups), epochs] == found["gamma1"]
    assert [*freezing_epochs(epochs, groups, 0.5), epochs] == found["gamma0p5"]


def test_whole_epochs_are_not_lost_to_rounding() -> None:
    assert freezing_epochs(100, 100) == tuple(range(100))
    assert freezing_epochs(1000, 10, 3) == (0, 1, 8, 27, 64, 125, 216, 343, 512, 729)


RESNET18 = ["stem", *(f"blocks.{number}" for number in range(7)), "blocks.7.conv1", "blocks.7.conv2", "classifier"]
RESNET50 = ["stem", *(f"blocks.{number}" for number in (3, 5, 7, 8, 9, 10, 12, 13, 14, 15))]


@pytest.mark.parametrize(
    ("name", "begin", "published"),
    [
        ("resnet18", RESNET18, [3, 9, 15, 24, 30, 39, 45, 54, 57, 60, 62]),
        ("resnet50", RESNET50, [33, 54, 72, 84, 93, 102, 120, 129, 141, 150, 161]),
    ],
)
def test_groups_as_published(name: str, begin: Sequence[str], published: list[int]) -> None:
    assert prefixes(ProgressiveFreezing(network(name), 350, groups=begin)) == published


def test_published_groups_end_where_ours_may() -> None:
    blocks = prefixes(ProgressiveFreezing(network("resnet18"), 350))
    assert blocks == [3, 9, 15, 24, 30, 39, 45, 54, 60, 62]
    every = prefixes(ProgressiveFreezing(network("resnet50"), 350, groups=100))
    assert {33, 54, 72, 84, 93, 102, 120, 129, 141, 150, 161} <= set(every)


@pytest.mark.parametrize("name", NETWORKS.names)
def test_every_network_splits_into_at_most_this_many_groups(name: str) -> None:
    whole = network(name)
    parts = whole.groups()  # type: ignore[operator]
    for count in (2, 3, 11, 1000):
        freezing = ProgressiveFreezing(whole, 20, groups=count)
        assert len(freezing.groups) == min(count, len(parts))
        together = [parameter for group in freezing.groups for parameter in group]
        assert [id(p) for p in together] == [id(p) for p in whole.parameters()]
        assert freezing.groups[-1][-1] is whole.classifier.bias  # type: ignore[union-attr]


def test_early_groups_have_the_parts_left_over() -> None:
    layers = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(18)))
    sizes = [len(group) for group in ProgressiveFreezing(layers, 20, groups=11).groups]
    assert sizes == [2] * 7 + [1] * 4


@given(epochs=st.integers(1, 60), groups=st.integers(2, 9), power=st.floats(0.1, 5))
def test_freezes_from_the_top_and_never_all(epochs: int, groups: int, power: float) -> None:
    layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(9)))
    freezing = ProgressiveFreezing(layers, epochs, groups=groups, power=power)
    parameters = list(layers.parameters())
    before = 0
    for epoch in range(epochs):
        frozen = freezing.frozen(epoch)
        assert [id(p) for p in frozen] == [id(p) for p in parameters[len(parameters) - len(frozen) :]]
        assert before <= len(frozen) < len(parameters)
        expected = sum(epoch >= int(epochs * (k / groups) ** power + 1e-9) for k in range(1, groups))
        assert len(frozen) == sum(map(len, freezing.groups[groups - expected :]))
        before = len(frozen)


def test_nothing_is_frozen_at_first_and_the_classifier_first() -> None:
    freezing = ProgressiveFreezing(whole := network("resnet18"), 100)
    assert freezing.frozen(0) == freezing.frozen(9) == ()
    assert [id(p) for p in freezing.frozen(10)] == [id(p) for p in whole.classifier.parameters()]  # type: ignore[union-attr]
    assert len(freezing.frozen(99)) == 62 - 3
    assert len(freezing.frozen(10_000)) == 62 - 3


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_frozen_parameters_do_not_change_but_statistics_do(optimiser: str) -> None:
    torch.manual_seed(0)
    trained = make_network("small-resnet", classes=3, image_size=8)
    steps: torch.optim.Optimizer
    if optimiser == "sgd":
        steps = torch.optim.SGD(trained.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
    else:
        steps = torch.optim.AdamW(trained.parameters(), 0.1, weight_decay=0.1)
    freezing = ProgressiveFreezing(trained, 5, groups=5)
    images, labels = torch.randn(6, 3, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    for epoch in range(5):
        before = {name: value.clone() for name, value in trained.state_dict().items()}
        frozen = {id(p) for p in freezing.frozen(epoch)}
        steps.zero_grad()
        F.cross_entropy(trained(images), labels).backward()  # type: ignore[no-untyped-call]
        for parameter in freezing.frozen(epoch):
            parameter.grad = None
        steps.step()
        after = trained.state_dict()
        for name, parameter in trained.named_parameters():
            assert torch.equal(after[name], before[name]) == (id(parameter) in frozen), name
        for name in (name for name in after if name.endswith("running_mean")):
            assert not torch.equal(after[name], before[name]), name
    assert len(frozen) == len(list(trained.parameters())) - 3


def test_any_module_is_frozen_layer_by_layer() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(4))
            self.embedding = nn.Linear(4, 4, bias=False)
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4))
            self.decoder = nn.Linear(4, 4)
            self.decoder.weight = self.embedding.weight

    freezing = ProgressiveFreezing(own := Own(), 10)
    assert [len(group) for group in freezing.groups] == [1, 1, 2, 2, 1]
    assert freezing.groups[1][0] is own.decoder.weight
    assert freezing.frozen(2) == (own.decoder.bias,)
    assert freezing.frozen(9)[0] is own.embedding.weight


def test_parameters_before_the_first_name_belong_to_its_group() -> None:
    freezing = ProgressiveFreezing(network("resnet18"), 10, groups=["blocks.3", "classifier"])
    assert prefixes(freezing) == [60, 62]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"groups": 1}, "groups must be a whole number of at least 2; got 1"),
        ({"groups": "stem"}, "groups must be a whole number or a list of names of modules; got 'stem'"),
        ({"groups": [1, 2]}, "groups must be a whole number or a list of names"),
        ({"groups": ["stem", "block.1"]}, "there is no module of the network named 'block.1'; did you mean blocks.1"),
        ({"groups": ["stem", "blocks.0.1"]}, "a group begins at a module with weights; blocks.0.1 has none"),
        (
            {"groups": ["classifier", "stem"]},
            "named in order, from the images to the logits; stem is out of order",
        ),
        ({"groups": ["stem", "stem"]}, "groups must be named in order"),
        ({"groups": ["stem"]}, "needs at least two groups of layers; there is 1"),
        ({"groups": []}, "needs at least two groups of layers"),
        ({"power": 0.0}, "power must be a number above 0"),
        ({"power": "fast"}, "power must be a number above 0"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1; got 0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    epochs = settings.pop("epochs", 10)
    with pytest.raises(InputError, match=says):
        ProgressiveFreezing(network("small-cnn"), epochs, **settings)


def test_a_network_of_one_layer_is_refused() -> None:
    for one in (nn.Linear(2, 2), nn.ReLU()):
        with pytest.raises(InputError, match="needs at least two groups of layers; there is"):
            ProgressiveFreezing(one, 10)
