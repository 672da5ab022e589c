"""What was measured beside other libraries, as a table."""

from __future__ import annotations

from typing import Any


def markdown(rows: list[dict[str, Any]]) -> str:
    """Each task as last measured: our milliseconds, and how many times as long the others took, the fastest first.

    >>> print(markdown([{"task": "ECE", "seconds": {"temperance": 0.002, "slow": 0.02, "fast": 0.003}}]))
    | task | temperance, ms | others, times as long |
    |---|---|---|
    | ECE | 2.0 | fast 1.5, slow 10.0 |
    """
    latest = {row["task"]: row["seconds"] for row in rows if "temperance" in row["seconds"]}
    lines = ["| task | temperance, ms | others, times as long |", "|---|---|---|"]
    for task, seconds in latest.items():
        ours = seconds["temperance"]
        others = sorted((value / ours, name) for name, value in seconds.items() if name != "temperance")
        told = ", ".join(f"{name} {ratio:.1f}" for ratio, name in others)
        if told:
            lines.append(f"| {task} | {1000 * ours:.1f} | {told} |")
    return "\n".join(lines)
