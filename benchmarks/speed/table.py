"""What was measured beside other libraries, as a table."""

from __future__ import annotations

from typing import Any

from benchmarks.quality.table import table


def markdown(rows: list[dict[str, Any]]) -> str:
    """Each task: the least time, our own, and how many times as long others took, the fastest first; quiet and busy.

    How long ours took beside busy processes is told where both were measured with the same code and nothing else ran.

    >>> row = {"task": "ECE", "how": "quiet", "floor": 0.001, "load": 0.5, "cores": 2, "commit": "abc"}
    >>> quiet = row | {"seconds": {"temperance": 0.002, "slow": 0.02, "fast": 0.003}}
    >>> busy = row | {"how": "busy", "seconds": {"temperance": 0.003, "slow": 0.02}}
    >>> print(markdown([quiet, busy]).splitlines()[2])
    | ECE | 1.0 | 2.0 | fast 1.5, slow 10.0 | 1.5 | slow 6.7 | 0 |
    >>> print(markdown([quiet, busy | {"load": 5.0}]).splitlines()[2])
    | ECE | 1.0 | 2.0 | fast 1.5, slow 10.0 | – | slow 6.7 | 5 |
    """
    heads = ["task", "least ms", "temperance, ms", "others ÷ ours", "busy ÷ quiet", "others ÷ ours, busy"]
    lines = []
    beside_busy = {row["task"]: row for row in rows if row["how"] == "busy"}
    for quiet in rows:
        if quiet["how"] != "quiet":
            continue
        ours, busy = quiet["seconds"]["temperance"], beside_busy.get(quiet["task"])
        least = f"{1000 * quiet['floor']:.1f}" if "floor" in quiet else "–"
        cells = [quiet["task"], least, f"{1000 * ours:.1f}", others(quiet)]
        if busy is None:
            cells += ["–", "–", "–"]
        else:
            alone = all(row["load"] <= row["cores"] for row in (quiet, busy)) and quiet["commit"] == busy["commit"]
            times = f"{busy['seconds']['temperance'] / ours:.1f}" if alone else "–"
            cells += [times, others(busy), f"{busy['load']:.0f}"]
        lines.append(cells)
    return table([*heads, "load before"], lines)


def others(row: dict[str, Any]) -> str:
    """How many times as long as ours the others took, the fastest first."""
    ours = row["seconds"]["temperance"]
    found = sorted((value / ours, name) for name, value in row["seconds"].items() if name != "temperance")
    return ", ".join(f"{name} {ratio:.1f}" for ratio, name in found) or "–"
