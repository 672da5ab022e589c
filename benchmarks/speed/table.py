"""What was measured beside other libraries, as a table."""

from __future__ import annotations

from typing import Any


def markdown(rows: list[dict[str, Any]]) -> str:
    """Each task: the least time, our own, and how many times as long others took, the fastest first; quiet and busy.

    >>> row = {"task": "ECE", "how": "quiet", "floor": 0.001}
    >>> quiet = row | {"seconds": {"temperance": 0.002, "slow": 0.02, "fast": 0.003}}
    >>> busy = row | {"how": "busy", "seconds": {"temperance": 0.003, "slow": 0.02}}
    >>> print(markdown([quiet, busy]).splitlines()[2])
    | ECE | 1.0 | 2.0 | fast 1.5, slow 10.0 | 1.5 | slow 6.7 |
    """
    heads = ["task", "least ms", "temperance, ms", "others, times as long", "busy, times", "others busy, times as long"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    busy = {row["task"]: row["seconds"] for row in rows if row["how"] == "busy"}
    for row in rows:
        if row["how"] == "quiet":
            quiet, beside = row["seconds"], busy.get(row["task"])
            ours = quiet["temperance"]
            cells = [row["task"], f"{1000 * row['floor']:.1f}", f"{1000 * ours:.1f}", others(quiet)]
            cells += [f"{beside['temperance'] / ours:.1f}", others(beside)] if beside else ["–", "–"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def others(seconds: dict[str, float]) -> str:
    """How many times as long as ours the others took, the fastest first."""
    ours = seconds["temperance"]
    found = sorted((value / ours, name) for name, value in seconds.items() if name != "temperance")
    return ", ".join(f"{name} {ratio:.1f}" for ratio, name in found) or "–"
