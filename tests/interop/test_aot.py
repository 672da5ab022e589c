"""AOTInductor compiles a calibrator, alone or behind a network, to a package that runs without Python."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conftest import random_predictions
from temperance.calibrators import CALIBRATORS

# Half a minute of C++. By default test_networks_contract.py exports every calibrator, and compiles one to machine code.
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(shutil.which("g++") is None, reason="AOTInductor needs a C++ compiler"),
]


class Both(nn.Module):
    """Two calibrators in one package, as compiling takes long: one behind a layer, and one with steps.

    A layer's logits may round differently, which would matter at the edge of a step.
    """

    def __init__(self) -> None:
        super().__init__()
        vector, self.isotonic = (
            CALIBRATORS[name]().fit(*random_predictions(240, 4, 0, sharpness=3.0)) for name in ("vector", "isotonic")
        )
        self.network = nn.Sequential(nn.Linear(4, 4), vector)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.network(inputs), self.isotonic(inputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # of torch, about its own parts
def test_a_compiled_network_agrees_for_any_number_of_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    both = Both().eval().requires_grad_(False)
    inputs = torch.randn(101, 4, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(both, (inputs[:8],), dynamic_shapes=({0: torch.export.Dim("n")},))
    # Headers that are compiled beforehand pay for the second network only.
    quick = {"aot_inductor.precompile_headers": False, "aot_inductor.compile_wrapper_opt_level": "O0"}
    package = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "network.pt2"), inductor_configs=quick
    )
    compiled = torch._inductor.aoti_load_package(package)
    for n in (2, 101):
        for found, expected in zip(compiled(inputs[:n]), both(inputs[:n]), strict=True):
            torch.testing.assert_close(found.exp(), expected.exp(), rtol=0, atol=1e-5)
