"""Use an installed temperance as a user would, with its required dependencies alone.

    python scripts/smoke.py

Measures, compares, fits, saves, applies and reports, on the command line and from Python, in a temporary folder. What
needs an extra must say which one. Ends with an error if anything is not as it should be.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from temperance import compare, evaluate
from temperance.calibrators import CALIBRATORS, load_calibrator, make_calibrator


def run(*arguments: str | Path, code: int = 0) -> str:
    """What a command prints; an error if it does not end with `code`."""
    command = [sys.executable, "-m", "temperance", *map(str, arguments)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == code, f"{' '.join(command)} ended with {said.returncode}:\n{said.stdout}{said.stderr}"
    assert "Traceback" not in said.stderr, said.stderr
    return said.stdout + said.stderr


def main() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(size=(600, 5)) * 3
    truth = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(1)  # twice as sure as it should be
    with tempfile.TemporaryDirectory() as folder:
        path, calibrator, page = (Path(folder, name) for name in ("pred.npz", "cal.safetensors", "page.html"))
        np.savez(path, logits=logits, labels=truth)
        assert "Over-confident" in run("evaluate", path, "--report", page) and page.stat().st_size > 10_000
        assert "temperature" in run("compare", path, "--methods", "temperature,vector", "--bootstrap", "50")
        run("fit", "temperature", path, "-o", calibrator)
        run("apply", calibrator, path, "-o", Path(folder, "out.npz"))
        assert abs(float(load_calibrator(calibrator).temperature) - 2) < 0.4
        if find_spec("pyarrow") is None:
            Path(folder, "x.parquet").write_bytes(b"PAR1")
            assert "pip install 'temperance[parquet]'" in run("evaluate", Path(folder, "x.parquet"), code=2)
    found = evaluate(logits, truth, from_logits=True, bootstrap=0)
    fitted = {name: make_calibrator(name).fit(logits, truth) for name in CALIBRATORS.names}
    for name, each in fitted.items():
        assert np.allclose(each.predict_proba(logits).sum(1), 1), name
    assert compare(logits, truth, from_logits=True, methods=["temperature"]).recommended.label == "temperature"
    print(f"all good: {found.title}; {len(fitted)} calibrators fitted")


if __name__ == "__main__":
    main()
