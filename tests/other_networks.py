"""Networks as they are in other libraries, and with what makes them hard to split."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from temperance.training.networks import make_network


class ResNetLike(nn.Module):
    """As torchvision's: `fc` at the end, BatchNorm before."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3)
        self.bn1 = nn.BatchNorm2d(6)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(F.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(torch.flatten(x, 1))
        return logits


class VGGLike(nn.Module):
    """As torchvision's: a classifier of several layers, dropout before the last."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 2, 3, 2), nn.ReLU())
        self.classifier = nn.Sequential(nn.Linear(18, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 4))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return logits


class TimmLike(nn.Module):
    """The classifier inside a head that is a module of its own, defined before something else."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(3)
            self.fc = nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.fc(self.norm(x.mean((2, 3))))
            return logits

    def __init__(self) -> None:
        super().__init__()
        self.head = self.Head()
        self.mixer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.mixer(x))
        return logits


class TransformerLike(nn.Module):
    """A class token before the image's patches; functional dropout at the top."""

    scale: Tensor

    def __init__(self, all_tokens: bool = False) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 12))
        self.register_buffer("scale", torch.ones(()))
        layer = nn.TransformerEncoderLayer(12, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.heads = nn.Sequential()
        self.heads.add_module("head", nn.Linear(12, 4))
        self.all_tokens = all_tokens

    def forward(self, x: Tensor) -> Tensor:
        patches = F.unfold(x, 2, stride=2).transpose(1, 2) * self.scale
        seen = self.encoder(torch.cat([self.token.expand(len(x), -1, -1), patches], 1))
        seen = F.dropout(seen, 0.5, self.training)
        logits: Tensor = self.heads(seen if self.all_tokens else seen[:, 0])
        return logits


class LeNetLike(nn.Module):
    """No usual name at all."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(192, 9)
        self.fc2 = nn.Linear(9, 5)
        self.fc3 = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1))))))
        return logits


class TwoHeads(nn.Module):
    """One for classes and one for something else, which is defined last."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.body = nn.Linear(192, 5)
        self.head = nn.Linear(5, 4)
        self.aux = nn.Linear(5, 2)
        self.both = both

    def forward(self, x: Tensor) -> Any:
        seen = F.relu(self.body(x.flatten(1)))
        return (self.head(seen), self.aux(seen)) if self.both else self.head(seen)


class HiddenFC(nn.Module):
    """A usual name for a hidden layer and another for the last."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 5)
        self.out = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.out(input=F.relu(self.fc(x.flatten(1))))
        return logits


class TwoNames(nn.Module):
    """One layer under two names, the second of which is used."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(192, 4)
        self.inner = nn.ModuleDict({"same": self.fc})

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.inner["same"](x.flatten(1))
        return logits


class Then(nn.Module):
    """A network and what it does with its logits."""

    def __init__(self, do: Any) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.fc = nn.Linear(192, 4)
        self.do = do

    def forward(self, x: Tensor) -> Any:
        return self.do(self.fc(self.flat(x)))


def sequential() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 4))


NETS = {
    "sequential": (sequential, "4", 5),
    "nested": (lambda: nn.Sequential(ResNetLike(), nn.Identity()), "0.fc", 6),
    "resnet": (ResNetLike, "fc", 6),
    "vgg": (VGGLike, "classifier.3", 7),
    "timm": (TimmLike, "head.fc", 3),
    "transformer": (TransformerLike, "heads.head", 12),
    "lenet": (LeNetLike, "fc3", 5),
    "two heads": (lambda: TwoHeads(both=False), "head", 5),
    "hidden fc": (HiddenFC, "out", 5),
    "two names": (TwoNames, "fc", 192),
    "ours": (lambda: make_network("small-resnet", classes=4, image_size=8), "classifier", 32),
    "only a layer": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), "1", 192),
    "half as float": (lambda: Then(lambda z: z.float()), "fc", 192),
    "temperature one": (lambda: Then(lambda z: z / 1.0), "fc", 192),
}
