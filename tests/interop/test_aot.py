"""AOTInductor compiles a calibrator, alone or behind a network, to a package that runs without Python."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import random_predictions
from temperance.calibrators import CALIBRATORS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler"),
]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch, about its own parts
# A layer's logits may round differently, which would matter at the edge of a step.
@pytest.mark.parametrize(("name", "layer"), [("vector", nn.Linear(4, 4)), ("isotonic", nn.Identity())])
def test_a_compiled_network_agrees_for_any_number_of_samples(
    name: str, layer: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    calibrator = CALIBRATORS[name]().fit(*random_predictions(240, 4, 0, sharpness=3.0))
    network = nn.Sequential(layer, calibrator).eval().requires_grad_(False)
    inputs = torch.randn(101, 4, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(network, (inputs[:8],), dynamic_shapes=({0: torch.export.Dim("n")},))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "network.pt2"))
    compiled = torch._inductor.aoti_load_package(package)
    for n in (2, 101):
        torch.testing.assert_close(compiled(inputs[:n]).exp(), network(inputs[:n]).exp(), rtol=0, atol=1e-5)
