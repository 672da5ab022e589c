"""How well every calibrator does on real predictions: `python -m benchmarks.quality FOLDER`."""
