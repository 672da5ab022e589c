"""Write the tables of the docs from registries and results: python scripts/tables.py (the tests check it was run)."""

import re
import sys
from pathlib import Path
from typing import Any

from temperance.cli.list_methods import described

ROOT = Path(__file__).resolve().parent.parent
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"
sys.path.insert(0, str(ROOT))

from benchmarks.quality import heads  # noqa: E402  (needs the root on the path)
from benchmarks.quality.table import markdown, read  # noqa: E402


def table(kind: str) -> str:
    """Every entry of a registry, or the means of a quality benchmark, as a Markdown table."""
    if kind == "quality":
        return markdown(read(RESULTS / "quality.jsonl"))
    if kind == "head_results":
        return heads.markdown(read(RESULTS / "heads.jsonl"))
    rows = [f"| {entry['name']} | {entry['summary']} | {settings(entry)} |" for entry in described(kind)]
    return "\n".join(["| name | what it is | settings |", "|---|---|---|", *rows])


def settings(entry: dict[str, Any]) -> str:
    return ", ".join(f"`{name}={value!r}`" for name, value in entry["settings"].items())


def filled(page: str) -> str:
    """A page with each `<!-- table: KIND -->` block replaced by the current table."""
    block = re.compile(r"<!-- table: (\w+) -->\n.*?<!-- end -->", re.DOTALL)
    return block.sub(lambda m: f"<!-- table: {m[1]} -->\n{table(m[1])}\n<!-- end -->", page)


if __name__ == "__main__":
    for path in sorted(DOCS.glob("*.md")):
        path.write_text(filled(path.read_text()))
