"""Small real images: scikit-learn's handwritten digits."""

import torch
from sklearn.datasets import load_digits

from temperance.data import ImageData, Images


def digits(n: int = 600) -> ImageData:
    """The first n digits, 8×8 pixels: 60 % to train on, 20 % to validate, 20 % to test."""
    found = load_digits()
    pixels = torch.from_numpy(found.images[:n] * 15).to(torch.uint8)[..., None]
    labels = torch.from_numpy(found.target[:n]).long()
    first, second = int(0.6 * n), int(0.8 * n)
    train, val, test = (
        Images(pixels[part], labels[part]) for part in (slice(first), slice(first, second), slice(second, n))
    )
    scaled = train.pixels.double() / 255
    names = tuple(map(str, range(10)))
    return ImageData("digits", train, val, test, names, (float(scaled.mean()),), (float(scaled.std()),))
