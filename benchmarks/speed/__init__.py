"""How fast temperance is beside its peers: `python -m benchmarks.speed`."""
