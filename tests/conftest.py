"""What the tests share: golden vectors, real predictions where they are at hand, and random ones."""

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import settings

from temperance.errors import FileError
from temperance.predictions import Predictions, read_predictions

# A busy machine is not a failure. Examples differ from run to run, so fewer in each are as many in the long run.
settings.register_profile("patient", deadline=None, max_examples=50)
settings.load_profile("patient")

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"


def pytest_collection_finish() -> None:
    """What is imported stays: the garbage collector need not go through half a million objects again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def vectors() -> Any:
    """Hand-checkable numbers, computed independently of this package."""
    return json.loads((ROOT / "tests" / "golden" / "vectors.json").read_text())


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real predictions beside the checkout; a test that needs it is skipped elsewhere."""
    if not SHARED.is_dir():
        pytest.skip("needs the real predictions in ../shared/data")
    return SHARED


@pytest.fixture(scope="session")
def fixture_a(vectors: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Six samples of three classes: logits and labels."""
    found = vectors["fixture_A"]
    return np.array(found["logits"]), np.array(found["labels"])


def random_predictions(n: int, k: int, seed: int = 0, sharpness: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are right more often than not and too sure of it, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=generator)
    logits = torch.randn(n, k, generator=generator, dtype=torch.float64)
    logits[torch.arange(n), labels] += 1.5
    return sharpness * logits, labels


def over_confident(n: int = 600, k: int = 4, seed: int = 0) -> Predictions:
    """Predictions that a temperature would mend."""
    return Predictions.of(*random_predictions(n, k, seed, sharpness=4.0), from_logits=True)


def refusal(path: Path, split: str | None = None) -> str:
    """Why a file of predictions cannot be read: one printable line that names the file."""
    with pytest.raises(FileError) as caught:
        list(read_predictions(path, split).chunks())
    message = str(caught.value)
    assert str(path) in message
    assert message.isprintable()
    return message
