"""Everything that the docs show is run: doctests, README and docs code blocks, links between pages."""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import temperance
from tables import LOSS_FAMILIES, filled
from temperance import evaluate
from temperance.calibrators import CALIBRATORS
from temperance.demo import demo_predictions
from temperance.errors import MissingExtraError
from temperance.losses import LOSSES
from temperance.metrics import METRICS, Metric

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
MODULES = [
    found.name
    for found in pkgutil.walk_packages(temperance.__path__, "temperance.")
    if not found.name.split(".")[-1].startswith("_")
]


def run_examples(text: str, globs: dict[str, object], name: str) -> None:
    examples = doctest.DocTestParser().get_doctest(text, dict(globs), name, None, 0)
    results = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(examples)
    assert results.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except MissingExtraError as error:
        pytest.skip(str(error))
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        assert doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(test).failed == 0


@pytest.mark.parametrize("metric", list(METRICS), ids=METRICS.names)
def test_metric_examples(metric: Metric) -> None:
    run_examples(metric.__doc__ or "", vars(importlib.import_module(metric.__module__)), metric.name)


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    """The Python of a page runs from top to bottom as one program, in an empty folder."""
    program = "\n".join(code_blocks(page, "python"))
    if "interop.onnx" in program and os.environ.get("CI") != "true":
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    if "interop.torchmetrics" in program:
        pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
    if program:
        found = subprocess.run(
            [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_tables_are_up_to_date() -> None:
    """What `python scripts/tables.py` would write is what is there."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        assert filled(page.read_text()) == page.read_text(), f"run scripts/tables.py: {page.name} is out of date"


@pytest.mark.parametrize("family", sorted({method.family for method in CALIBRATORS}))
def test_every_family_of_calibrators_has_a_page(family: str) -> None:
    """With its picture, its methods and what they cost; the overview leads to it."""
    page = (ROOT / "docs" / "calibrators" / f"{family}.md").read_text()
    for part in (
        f"](../pictures/{family}.png)",
        f"<!-- table: calibrators {family} -->",
        f"<!-- table: cost {family} -->",
    ):
        assert part in page
    assert code_blocks(ROOT / "docs" / "calibrators" / f"{family}.md", "python")
    assert f"](calibrators/{family}.md)" in (ROOT / "docs" / "calibrators.md").read_text()


def test_every_loss_is_of_one_family() -> None:
    assert sorted(name for names in LOSS_FAMILIES.values() for name in names) == sorted(LOSSES.names)


@pytest.mark.parametrize("family", [*LOSS_FAMILIES, "mixup"])
def test_every_family_of_losses_has_a_page(family: str) -> None:
    """With its picture, what the papers used and what held, its losses and what they cost; the overview leads to it."""
    path = ROOT / "docs" / "losses" / f"{family}.md"
    page = path.read_text()
    parts = [f"](../pictures/losses-{family}.png)", "## What held and what did not", "## Cost"]
    if family in LOSS_FAMILIES:
        parts += [f"<!-- table: losses {family} -->", f"<!-- table: loss_cost {family} -->"]
    if any(LOSSES[name].hyper_parameters for name in LOSS_FAMILIES.get(family, ())):
        parts.append(f"<!-- table: loss_settings {family} -->")
    assert [part for part in parts if part not in page] == []
    assert code_blocks(path, "python")
    assert f"](losses/{family}.md)" in (ROOT / "docs" / "losses.md").read_text()


def test_tests_that_the_docs_name_are_there() -> None:
    written = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for page in [ROOT / "docs" / "losses.md", *(ROOT / "docs" / "losses").glob("*.md")]:
        for name in re.findall(r"`(test_\w+)`", page.read_text()):
            assert f"def {name}(" in written, f"{page.name} names {name}"
        for path in re.findall(r"`(tests/[\w/]+\.py)`", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_pictures_are_small() -> None:
    for picture in (ROOT / "docs" / "pictures").iterdir():
        assert picture.stat().st_size < 120_000


def test_import_is_light() -> None:
    """`import temperance` brings in no optional dependency, and little beside torch."""
    program = "import sys, temperance; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"matplotlib", "pyarrow", "sklearn", "pandas", "scipy", "rich"} & set(found.stdout.split())


def test_the_verdict_in_the_readme_is_that_of_the_demo() -> None:
    lines = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("> ")]
    quoted = " ".join(line.removeprefix("> ") for line in lines).removesuffix(" …")
    _, test = demo_predictions()
    assert evaluate(test, metrics=["ece"], bootstrap=0).verdict.startswith(quoted)
