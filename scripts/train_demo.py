"""Train a ResNet-18 on CIFAR-100 and write the predictions that ship with temperance as its demo.

    python scripts/train_demo.py --data cifar100.npz --out src/temperance/demo/cifar100_resnet18.npz

The claim: on one H200 GPU with torch 2.11.0, ResNet-18 (CIFAR variant: 3x3 stem, no max-pool, 64-128-256-512) trained
on 45,000 of the 50,000 training images, seed 0, takes 0.97 s an epoch (the median of 100; the first one compiles and
takes longer) and reaches 75.57 % test accuracy with a 15-bin test ECE of 8.66 %: one run, as recorded in the .json
beside the predictions.

The recipe is the usual one and nothing in it is tuned for calibration, because the demo should show the overconfidence
that a plain recipe gives: cross-entropy, SGD 0.1 with Nesterov momentum 0.9, weight decay 5e-4, batch 128, 100 epochs,
learning rate divided by 10 at 43 % and 71 % of them, random 4-pixel crops and horizontal flips.

The last epoch's weights are kept. The 5,000 validation images are never trained on and never used to choose anything,
so a calibrator may be fitted on them.

DATA   an .npz with train_images (50000, 32, 32, 3) uint8, train_labels, test_images (10000, 32, 32, 3) uint8,
       test_labels: the official images and fine labels, in the official order.
OUT    an .npz with val_logits (5000, 100) float16, val_labels uint8, test_logits (10000, 100) float16, test_labels
       uint8, class_names (100,) str; and a .json of the same name that says where it came from.

The split is fixed. A seed fixes the initialisation, the order of the images and their augmentation, but does not
promise the same bits twice: cuDNN picks its kernels by timing them. Expect a rerun to come close, not to match.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# ----------------------------------------------------------------------------------------------------------------------
# Settings
# ----------------------------------------------------------------------------------------------------------------------

BATCH = 128
LR = 0.1
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-4
LR_DROPS = (0.43, 0.71)  # fractions of the epochs, after each of which the learning rate is divided by 10
PAD = 4
SPLIT_SEED = 0  # apart from --seed, so that networks of different seeds share their validation images
ECE_BINS = 15

MEAN = (0.5071, 0.4865, 0.4409)  # of the 50,000 training images, by channel, pixels in [0, 1]
STD = (0.2673, 0.2564, 0.2762)

# The fine labels 0 to 99, in the official order, which is alphabetical.
CLASS_NAMES = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle
bowl boy bridge bus butterfly camel can castle caterpillar cattle
chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard
lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
plain plate poppy porcupine possum rabbit raccoon ray road rocket
rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
train trout tulip turtle wardrobe whale willow_tree wolf woman worm
""".split()  # noqa: SIM905 (a hundred quoted names would not read)


# ----------------------------------------------------------------------------------------------------------------------
# Data: uint8 (n, 32, 32, 3), on the device as one tensor for each part
# ----------------------------------------------------------------------------------------------------------------------


def load(path, device):
    """The parts train, val and test, each as (images uint8, labels int64) on the device."""
    with np.load(path) as data:
        images, labels = data["train_images"], data["train_labels"]
        test = data["test_images"], data["test_labels"]
    # One training image in ten is held out: the last tenth of a seeded permutation, in the permutation's order.
    order = np.random.default_rng(SPLIT_SEED).permutation(len(images))
    train_index, val_index = np.split(order, [len(images) - len(images) // 10])
    parts = {
        "train": (images[train_index], labels[train_index]),
        "val": (images[val_index], labels[val_index]),
        "test": test,
    }
    return {
        name: (torch.from_numpy(x).to(device), torch.from_numpy(y.astype(np.int64)).to(device))
        for name, (x, y) in parts.items()
    }


def normalize(images):
    """uint8 (n, 32, 32, 3) to normalised float32 (n, 3, 32, 32); the permuted view already is channels-last."""
    mean = torch.tensor(MEAN, device=images.device) * 255
    std = torch.tensor(STD, device=images.device) * 255
    return ((images.float() - mean) / std).permute(0, 3, 1, 2)


def augment(padded):
    """One random 32x32 crop of every padded image, mirrored half of the time: a single gather for the whole epoch."""
    n, device = len(padded), padded.device
    size = padded.shape[1] - 2 * PAD
    steps = torch.arange(size, device=device)
    top, left = torch.randint(2 * PAD + 1, (2, n, 1), device=device)
    flip = torch.rand(n, 1, device=device) < 0.5
    rows = top + steps
    columns = left + torch.where(flip, steps.flip(0), steps)
    return padded[torch.arange(n, device=device)[:, None, None], rows[:, :, None], columns[:, None, :]]


# ----------------------------------------------------------------------------------------------------------------------
# Network: ResNet-18 for 32x32 images (3x3 stem of stride 1, no max-pool)
# ----------------------------------------------------------------------------------------------------------------------


def conv(c_in, c_out, kernel, stride=1):
    return nn.Conv2d(c_in, c_out, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1, self.bn1 = conv(c_in, c_out, 3, stride), nn.BatchNorm2d(c_out)
        self.conv2, self.bn2 = conv(c_out, c_out, 3), nn.BatchNorm2d(c_out)
        same = stride == 1 and c_in == c_out
        self.shortcut = nn.Identity() if same else nn.Sequential(conv(c_in, c_out, 1, stride), nn.BatchNorm2d(c_out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    def __init__(self, classes):
        super().__init__()
        blocks = []
        c_in = 64
        for c_out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Block(c_in, c_out, stride), Block(c_out, c_out, 1)]
            c_in = c_out
        self.stem = nn.Sequential(conv(3, 64, 3), nn.BatchNorm2d(64), nn.ReLU())
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, classes)

    def features(self, x):
        return self.blocks(self.stem(x)).mean((2, 3))

    def forward(self, x):
        return self.head(self.features(x))


# ----------------------------------------------------------------------------------------------------------------------
# Prediction and measurement
# ----------------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def predict(model, images, forward=None):
    """float32 outputs for uint8 images: no autocast, since bfloat16 would keep only three digits of a logit."""
    model.eval()
    return torch.cat([(forward or model)(normalize(batch)) for batch in images.split(1000)])


def measure(logits, labels):
    """Accuracy, 15-bin ECE (bins (lo, hi]) and NLL of the logits as stored, in float64."""
    z = logits.astype(np.float64)
    z -= z.max(1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
    confidence = np.exp(log_p.max(1))
    correct = log_p.argmax(1) == labels
    edges = np.linspace(0, 1, ECE_BINS + 1)
    bins = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, ECE_BINS - 1)
    # |sum of (correct - confidence)| in a bin is the bin's gap times its count.
    ece = np.abs(np.bincount(bins, correct - confidence, ECE_BINS)).sum() / len(labels)
    nll = -log_p[np.arange(len(labels)), labels].mean()
    return {"accuracy": round(correct.mean(), 6), "ece_15": round(ece, 6), "nll": round(nll, 6)}


# ----------------------------------------------------------------------------------------------------------------------
# Training
# ----------------------------------------------------------------------------------------------------------------------


def train(parts, epochs, device, compile_step):
    """A trained network, and the seconds that each epoch took."""
    images, labels = parts["train"]
    val_images, val_labels = parts["val"]
    padded = F.pad(images, (0, 0, PAD, PAD, PAD, PAD))  # black, as the usual pad-then-crop has it
    model = ResNet18(len(CLASS_NAMES)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(
        model.parameters(), LR, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True, fused=True
    )
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [round(epochs * drop) for drop in LR_DROPS], 0.1)

    def forward_loss(x, y):
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(normalize(x))
        return F.cross_entropy(logits.float(), y)

    if compile_step:
        # With CUDA graphs, because the host cannot launch kernels this small fast enough: without them a step took
        # 10 ms on the H200's machine, with them 2.8.
        forward_loss = torch.compile(forward_loss, mode="reduce-overhead")

    seconds = []
    for epoch in range(epochs):
        start = time.perf_counter()
        model.train()
        epoch_images = augment(padded)
        order = torch.randperm(len(labels), device=device)
        total = torch.zeros((), device=device)
        steps = len(labels) // BATCH  # the last, smaller batch is left out: it would be compiled anew
        for index in order[: steps * BATCH].split(BATCH):
            loss = forward_loss(epoch_images[index], labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        schedule.step()
        train_loss = total.item() / steps  # .item() waits for the device, so the clock below is honest
        seconds.append(time.perf_counter() - start)
        accuracy = (predict(model, val_images).argmax(1) == val_labels).float().mean().item()
        print(f"epoch {epoch + 1:3d}  {seconds[-1]:6.2f} s  train loss {train_loss:.4f}  val accuracy {accuracy:.4f}")
    return model, seconds


# ----------------------------------------------------------------------------------------------------------------------
# Run
# ----------------------------------------------------------------------------------------------------------------------


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the .npz of images and labels")
    parser.add_argument("--out", type=Path, required=True, help="the .npz to write; a .json is written beside it")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--no-compile", action="store_true", help="skip torch.compile, for a short run on a CPU")
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False  # float32 predictions are to be float32; training is in bfloat16 anyway
    parts = load(args.data, args.device)
    model, seconds = train(parts, args.epochs, args.device, not args.no_compile)

    arrays, results = {}, {}
    for name in ("val", "test"):
        images, labels = parts[name]
        exact = predict(model, images).cpu().numpy()
        labels = labels.cpu().numpy()
        stored = exact.astype(np.float16)
        results[name] = measure(stored, labels)
        print(f"{name:4s}  " + "  ".join(f"{key} {value:.4f}" for key, value in results[name].items()))
        # Half precision may tie two classes that float32 tells apart: make sure that it hardly ever does.
        drift = abs(results[name]["accuracy"] - (exact.argmax(1) == labels).mean())
        if drift > 0.001:
            raise SystemExit(f"{name}: storing float16 moved the accuracy by {100 * drift:.2f} points")
        arrays |= {f"{name}_logits": stored, f"{name}_labels": labels.astype(np.uint8)}

    cuda = args.device.type == "cuda"
    provenance = {
        "network": "ResNet-18, CIFAR variant (3x3 stem, no max-pool, 64-128-256-512)",
        "dataset": "CIFAR-100, fine labels",
        "split": (
            f"numpy.random.default_rng({SPLIT_SEED}).permutation({sum(len(parts[p][1]) for p in ('train', 'val'))}) of "
            f"the training images: the first {len(parts['train'][1])} train, the last {len(parts['val'][1])} validate"
        ),
        "seed": args.seed,
        "epochs": args.epochs,
        "hardware": f"one {torch.cuda.get_device_name().removeprefix('NVIDIA ')} GPU" if cuda else "CPU",
        "torch": torch.__version__,
        "seconds_per_epoch": round(float(np.median(seconds)), 3),
        "val": results["val"],
        "test": results["test"],
        "measured": "NumPy, float64, from the float16 logits; ECE of the top class, 15 equal-width bins (lo, hi]",
        "made_by": "scripts/train_demo.py",
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(args.out, **arrays, class_names=np.array(CLASS_NAMES))
    args.out.with_suffix(".json").write_text(json.dumps(provenance, indent=2) + "\n")
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB, {provenance['seconds_per_epoch']} s an epoch")


if __name__ == "__main__":
    main()
