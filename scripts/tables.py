"""Write the tables of the docs from the registries: python scripts/tables.py (the tests check that it was run)."""

import re
from pathlib import Path
from typing import Any

from temperance.cli.list_methods import described

DOCS = Path(__file__).resolve().parent.parent / "docs"


def table(kind: str) -> str:
    """Every entry of a registry as a Markdown table."""
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
