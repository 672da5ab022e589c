"""Recipes: schedules as the papers print them, and refusals."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from temperance.data import read_images
from temperance.errors import InputError
from temperance.losses import MIT, Mixup
from temperance.training import train
from temperance.training.recipe import RECIPES, Recipe


def test_steps_are_where_the_papers_have_them() -> None:
    recipe = RECIPES["cifar"]
    assert [recipe.lr_at(epoch) for epoch in (0, 149, 150, 249, 250, 349)] == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    selective = RECIPES["selective-cifar10"]
    assert [selective.lr_at(epoch) for epoch in (59, 60, 120, 160, 199)] == [0.1, 0.02, 0.004, 0.0008, 0.0008]


def test_the_selective_risk_program_begins_to_keep_later_on_cifar() -> None:
    first = {name: RECIPES[f"selective-{name}"].first_kept for name in ("cifar10", "cifar100", "tiny-imagenet")}
    assert first == {"cifar10": 40, "cifar100": 40, "tiny-imagenet": 20}
    assert Recipe.of("selective-tiny-imagenet", epochs=15).first_kept == 5


def test_drops_may_be_shares_of_the_epochs() -> None:
    recipe = Recipe(epochs=100)
    assert [recipe.lr_at(epoch) for epoch in (42, 43, 70, 71)] == [0.1, 0.01, 0.01, 0.001]


def test_cosine_begins_at_the_rate_and_ends_near_zero() -> None:
    recipe = Recipe(schedule="cosine", epochs=10, lr=0.2)
    rates = [recipe.lr_at(epoch) for epoch in range(10)]
    assert rates[0] == 0.2 and rates == sorted(rates, reverse=True)
    assert rates[5] == pytest.approx(0.1) and rates[-1] == pytest.approx(0.1 * (1 + math.cos(0.9 * math.pi)))


def test_warm_up_rises_to_the_rate() -> None:
    recipe = Recipe(schedule="constant", warmup=3, lr=0.4)
    assert [recipe.lr_at(epoch) for epoch in range(5)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_kinds_of_mixing() -> None:
    assert Recipe().mixing() is None
    mixup, mit = Recipe(mix="mixup:alpha=0.3").mixing(), Recipe(mix="mit").mixing()
    assert isinstance(mixup, Mixup) and mixup.alpha == 0.3
    assert isinstance(mit, MIT)


def test_optimisers_have_the_settings() -> None:
    network = nn.Linear(2, 2)
    sgd = Recipe(lr=0.3, nesterov=True).make_optimiser(network)
    assert isinstance(sgd, torch.optim.SGD) and sgd.defaults["nesterov"] and sgd.defaults["lr"] == 0.3
    adamw = RECIPES["imagenet"].make_optimiser(network)
    assert isinstance(adamw, torch.optim.AdamW) and adamw.defaults["weight_decay"] == 0.05


def test_a_preset_with_other_settings() -> None:
    recipe = Recipe.of("cifar", epochs=10, seed=3)
    assert (recipe.epochs, recipe.batch_size, recipe.seed) == (10, 128, 3)


def test_a_preset_with_fewer_epochs_drops_at_the_same_shares_of_them() -> None:
    shorter = Recipe.of("cifar", epochs=35)
    assert [shorter.lr_at(epoch) for epoch in (14, 15, 24, 25)] == [0.1, 0.01, 0.01, 0.001]
    assert Recipe.of("cifar", epochs=350).drops == (150, 250)
    assert Recipe.of("cifar", epochs=35, drops=(5,)).drops == (5,)
    assert Recipe.of(epochs=35).drops == Recipe().drops


def test_the_border_is_in_pixels_or_a_share_of_the_shorter_side() -> None:
    assert [Recipe().border(side, side) for side in (8, 32, 224)] == [1, 4, 28]
    assert Recipe(crop=0.25).border(40, 20) == 5
    assert (Recipe(crop=3).border(8, 8), Recipe(crop=0).border(8, 8)) == (3, 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"mix": "blend"}, "recipe: there is no mix named 'blend'; known: cutmix, mit, mixup"),
        ({"mix": "mixup:beta=2"}, "recipe: there is no setting of mixup named 'beta'"),
        ({"mix": "mixup:alpha=0"}, "recipe: mixup: alpha must be a number above 0; got 0"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov needs a momentum"),
        ({"warmup": 6, "epochs": 6}, "warmup must be less than the 6 epochs; got 6"),
        ({"crop": 2.5}, "crop must be a whole number from 0 to 10000 or a number above 0 and below 1; got 2.5"),
        ({"preset": "cifra"}, "preset must be one of"),
        ({"epoch": 3}, "did you mean epochs"),
    ],
)
def test_refusals(settings: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Recipe.of(**settings)  # type: ignore[arg-type]


def test_a_name_is_not_a_recipe() -> None:
    name: Any = "cifar"
    with pytest.raises(InputError, match=r"recipe must be a recipe, such as Recipe.of\('cifar'\); got 'cifar'"):
        train(nn.Linear(2, 2), read_images("digits"), recipe=name)
