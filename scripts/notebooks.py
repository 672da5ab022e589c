"""Write the tutorials as notebooks: python scripts/notebooks.py (the tests check it was run, and run the tutorials)."""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


def notebook(page: Path) -> str:
    """A page as a notebook: its Python in cells of code, all else between them."""
    folder = page.parent.relative_to(ROOT).as_posix()
    cells = []
    for i, part in enumerate(re.split(r"```python\n(.*?)```\n", page.read_text(), flags=re.DOTALL)):
        if part.strip():
            cells.append(_cell(part.strip(), f"cell-{i}", is_code=i % 2 == 1, folder=folder))
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    found = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _cell(text: str, name: str, *, is_code: bool, folder: str) -> dict[str, Any]:
    if is_code:
        kind: dict[str, Any] = {"cell_type": "code", "execution_count": None, "outputs": []}
    else:
        kind = {"cell_type": "markdown"}

        def moved(link: re.Match[str]) -> str:
            return f"](../{posixpath.normpath(f'{folder}/{link[1]}')}"

        text = re.sub(r"\]\((?!http|#)([^)#]+)", moved, text)
    return {**kind, "id": name, "metadata": {}, "source": text.splitlines(keepends=True)}


def path_of(page: Path) -> Path:
    """Where the notebook of a page is."""
    return ROOT / "examples" / f"{page.stem}.ipynb"


if __name__ == "__main__":
    for tutorial in TUTORIALS:
        path_of(tutorial).parent.mkdir(exist_ok=True)
        path_of(tutorial).write_text(notebook(tutorial))
