"""Mixed batches: hand-checked losses, exactness for linear networks, areas, the draws."""

from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from temperance.errors import InputError
from temperance.losses import MDCA, CrossEntropy
from temperance.losses.mixup import MIT, CutMix, Mixed, Mixup, TwiceMixed, decouple, symmetric_beta


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(n: int = 8, size: int = 6, k: int = 3) -> tuple[Tensor, Tensor]:
    images = torch.rand(n, 2, size, size + 2, dtype=torch.float64, generator=seeded())
    return images, torch.randint(k, (n,), generator=seeded(1))


def linear_network() -> nn.Module:
    last = nn.Linear(96, 3, bias=False).double()
    nn.init.normal_(last.weight, generator=seeded(2))
    return nn.Sequential(nn.Flatten(), last)


def test_mixup_golden(vectors: Any) -> None:
    v = vectors["mixup_hand"]
    logits = torch.tensor([v["z"], v["z"]], dtype=torch.float64)
    mixed = Mixed(torch.tensor([v["ya"], v["yb"]]), torch.tensor([1, 0]), logits, v["lam"])
    found = mixed.loss(CrossEntropy(reduction="none"), lambda images: images)
    assert float(found[0]) == pytest.approx(v["loss"], abs=2e-6)


def test_mixup_mixes_images_and_labels_alike() -> None:
    images, labels = batch()
    mixed = Mixup(alpha=1.0)(images, labels, generator=seeded(3))
    expected = mixed.share * images + (1 - mixed.share) * images[mixed.partner]
    assert torch.allclose(mixed.images, expected)
    network = linear_network()
    probs = network(expected).log_softmax(1)
    target = torch.eye(3, dtype=torch.float64)
    soft = mixed.share * target[labels] + (1 - mixed.share) * target[labels[mixed.partner]]
    assert torch.allclose(mixed.loss(CrossEntropy(), network), -(soft * probs).sum(1).mean())


def test_all_of_an_image_is_the_image_itself() -> None:
    images, labels = batch()
    network, order = linear_network(), torch.arange(8).flip(0)
    mixed = Mixed(labels, order, torch.lerp(images[order], images, 1.0), 1.0)
    assert torch.equal(mixed.images, images)
    assert torch.equal(mixed.loss(CrossEntropy(), network), CrossEntropy()(network(images), labels))


def test_mit_golden(vectors: Any) -> None:
    v = vectors["mit_decouple"]
    own, other = decouple(torch.tensor(v["mixed1"]), torch.tensor(v["mixed2"]), v["l1"], v["l2"])
    assert own.tolist() == pytest.approx(v["rec_a"], abs=1e-6)
    assert other.tolist() == pytest.approx(v["rec_b"], abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_mit_is_exact_for_linear_networks(seed: int) -> None:
    images, labels = batch()
    network = linear_network()
    mixed = MIT(margin=0.1)(images, labels, generator=seeded(seed))
    own, others = mixed.logits(network)
    assert torch.allclose(own, network(images), atol=1e-9)
    assert torch.allclose(others, network(images[mixed.partner]), atol=1e-9)
    plain = CrossEntropy()(network(images), labels)
    assert torch.allclose(mixed.loss(CrossEntropy(), network), plain)


def test_mit_keeps_its_margin() -> None:
    images, labels = batch(2)
    generator = seeded()
    for _ in range(50):
        high, low = MIT(margin=0.5)(images, labels, generator=generator).shares
        assert high >= 0.5 >= low and high - low >= 0.5
    with pytest.raises(InputError, match="lower margin or alpha"):
        MIT(alpha=500.0, margin=0.9)(images, labels, generator=generator)


@pytest.mark.parametrize("seed", range(8))
def test_cutmix_share_is_the_area_that_is_left(seed: int) -> None:
    images, labels = torch.zeros(4, 1, 7, 5), torch.tensor([0, 1, 2, 3])
    images += labels[:, None, None, None]
    mixed = CutMix()(images, labels, generator=seeded(seed))
    for i in range(4):
        own = (mixed.images[i] == labels[i]).double().mean()
        partner = int(mixed.partner[i])
        assert float(own) == pytest.approx(1.0 if partner == i else mixed.share)
        assert set(mixed.images[i].flatten().long().tolist()) <= {i, partner}


def test_cutmix_needs_images() -> None:
    with pytest.raises(InputError, match="CutMix needs images"):
        CutMix()(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), generator=seeded())


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_draws_are_beta(alpha: float) -> None:
    generator = seeded()
    draws = [symmetric_beta(alpha, generator) for _ in range(2000)]
    assert stats.kstest(draws, stats.beta(alpha, alpha).cdf).pvalue > 1e-3


@pytest.mark.parametrize("mix", [Mixup(), CutMix(), MIT()], ids=["mixup", "cutmix", "mit"])
def test_same_seed_same_batch_and_no_global_randomness(mix: Any) -> None:
    images, labels = batch()
    kept = images.clone()
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    one, other = mix(images, labels, generator=seeded(5)), mix(images, labels, generator=seeded(5))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(images, kept)
    assert torch.equal(one.partner, other.partner)
    network = linear_network()
    assert torch.equal(one.loss(MDCA(), network), other.loss(MDCA(), network))


@pytest.mark.parametrize("kind", [Mixed, TwiceMixed])
def test_losses_that_remember_samples_get_their_numbers(kind: type[Mixed] | type[TwiceMixed]) -> None:
    images, labels = batch()
    mixed = (Mixup() if kind is Mixed else MIT())(images, labels, generator=seeded())
    seen: list[tuple[Tensor, Tensor]] = []

    def loss(logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        seen.append((labels, indices))
        return logits.mean()

    indices = torch.arange(100, 108)
    mixed.loss(loss, linear_network(), indices)
    assert torch.equal(seen[0][0], labels) and torch.equal(seen[0][1], indices)
    assert torch.equal(seen[1][0], labels[mixed.partner]) and torch.equal(seen[1][1], indices[mixed.partner])


def test_batches_are_checked() -> None:
    images, labels = batch()
    with pytest.raises(InputError, match="every image must have a label"):
        Mixup()(images, labels[:3], generator=seeded())
    with pytest.raises(InputError, match="floating-point"):
        MIT()(images.long(), labels, generator=seeded())
