"""TST and VTST: the layers, the KL term, averaging over noise, the best epoch."""

from typing import Any

import pytest
import torch

from temperance.heads import TST, VTST, make_head
from temperance.heads.features import Features
from temperance.heads.loop import FeatureBatch
from temperance.heads.tst import kl_to_standard
from temperance.losses import CrossEntropy


@pytest.fixture(scope="module")
def features() -> Features:
    """Labels that hardly depend on the features, so that a head soon learns them by heart."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(240, 8, generator=generator)
    y = (x[:, 0] + 2 * torch.randn(240, generator=generator) > 0).long()
    return Features.of(x[:120], y[:120], val_features=x[120:], val_labels=y[120:])


def test_kl(vectors: Any) -> None:
    found = vectors["vtst_kl"]
    each = kl_to_standard(torch.tensor(found["mu"]), torch.tensor(found["logvar"]))
    assert float(each.sum()) == pytest.approx(found["kl"], abs=1e-6)
    assert float(each.mean()) == pytest.approx(found["kl_over_dim"], abs=1e-6)


def test_kl_is_torchs(features: Features) -> None:
    mean, log_variance = features.train.features[:, :4], -features.train.features[:, 4:].abs()
    normal = torch.distributions.Normal
    expected = torch.distributions.kl_divergence(normal(mean, (log_variance / 2).exp()), normal(0.0, 1.0))
    assert torch.allclose(kl_to_standard(mean, log_variance), expected, atol=1e-6)


def test_layers(features: Features) -> None:
    shapes = {name: tuple(p.shape) for name, p in TST(latent=5, epochs=1).fit(features).state_dict().items()}
    assert shapes == {
        "mean.0.weight": (15, 8),
        "mean.0.bias": (15,),
        "mean.2.weight": (5, 15),
        "mean.2.bias": (5,),
        "last.weight": (2, 5),
        "last.bias": (2,),
    }


@pytest.mark.parametrize("kind", [TST, VTST])
def test_the_best_epoch_is_kept(kind: type[TST] | type[VTST], features: Features) -> None:
    assert features.val is not None
    settings: Any = {"latent": 32, "epochs": 30, "lr": 0.01, "batch_size": 30}
    best, last = (kind(keep=keep, **settings).fit(features) for keep in ("best", "last"))
    nll = [row["val_nll"] for row in best.history]
    assert min(nll) < nll[-1], "the fixture is made so that training goes on for too long"
    assert best.info == {"best_epoch": 1 + nll.index(min(nll)), "val_nll": min(nll)}
    for head, expected in ((best, min(nll)), (last, nll[-1])):
        found = torch.nn.functional.cross_entropy(head(features.val.features), features.val.labels)
        assert float(found) == pytest.approx(expected, abs=1e-5)


def test_vtst_averages_over_its_noise(features: Features) -> None:
    head = VTST(latent=6, n_draws=7, epochs=2).fit(features)
    x = features.train.features
    mean, spread = head.mean(x), torch.nn.functional.logsigmoid(head.spread(x)).div(2).exp()
    assert head.noise.shape == (7, 6) and bool((spread < 1).all())
    expected = torch.stack([head.last(mean + spread * noise).softmax(1) for noise in head.noise]).mean(0)
    assert torch.allclose(head(x).exp(), expected, atol=1e-6)


def test_vtst_objective(features: Features) -> None:
    """loss(logits) + KL / Z, with fresh noise for every sample."""
    head = VTST(latent=6, epochs=1).fit(features)
    batch = FeatureBatch(features.train.features, features.train.labels, torch.arange(120))
    value, logits = head._objective(batch, CrossEntropy(), torch.Generator().manual_seed(0))
    mean, log_variance = head._middle(batch.features)
    noise = torch.empty(120, 6).normal_(generator=torch.Generator().manual_seed(0))
    assert torch.allclose(logits, head.last(mean + (log_variance / 2).exp() * noise), atol=1e-6)
    kl = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean() / 6
    assert float(value) == pytest.approx(float(torch.nn.functional.cross_entropy(logits, batch.labels) + kl), abs=1e-5)


def test_presets() -> None:
    for name in ("tst", "vtst"):
        assert make_head(name, preset="released").get_params() == make_head(name).get_params()
        paper = make_head(name, preset="mac-cal-paper")
        assert (paper.optimiser, paper.lr, paper.epochs, paper.batch_size) == ("sgd", 0.1, 40, 128)
