"""Everything that the docs show is run: doctests, README and docs code blocks, links between pages."""

import ast
import doctest
import importlib
import io
import json
import os
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import temperance
from method_pages import REGISTRIES, documented, page_path, pages, uses
from notebooks import TUTORIALS, notebook, path_of
from programs import Run, command, runner
from tables import LOSS_FAMILIES, drawn, filled
from temperance import evaluate
from temperance.calibrators import CALIBRATORS
from temperance.cli import parser
from temperance.cli.list_methods import KINDS, described
from temperance.demo import demo_predictions
from temperance.errors import MissingExtraError
from temperance.heads import Features
from temperance.losses import LOSSES
from temperance.metrics import METRICS, Metric

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
MADE = {path for path, _ in pages()}
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


def quotations(page: Path) -> list[str]:
    """What a page quotes, each on one line."""
    found = re.findall(r"(?:^> .*\n)+", page.read_text(), re.MULTILINE)
    return [" ".join(quote.replace("> ", "").split()) for quote in found]


# Runs a page's program, and says at the end what was printed by which line.
RECORDER = """
import builtins, json, sys
printed, plain = {}, print
def record(*values, **options):
    line = sys._getframe(1).f_lineno
    printed[line] = printed.get(line, "") + " ".join(map(str, values)) + "\\n"
    plain(*values, **options)
builtins.print = record
exec(compile(open("page.py").read(), "page.py", "exec"), {"__name__": "__main__"})
json.dump(printed, open("printed.json", "w"))
"""
NUMBER = re.compile(r"(?<![\w.])[-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?(?![\w])( ?%)?")


# What most pages import.
IMPORTS = """
import importlib.util
import torch._dynamo, torch.export._trace, torch.utils._sympy.numbers
import scipy.optimize, scipy.special, temperance.calibrators, temperance.jobs.comparison, temperance.metrics

for name in ("matplotlib.pyplot", "onnxscript.function_libs.torch_lib.ops", "pandas", "sklearn.datasets"):
    if importlib.util.find_spec(name.partition(".")[0]):
        importlib.import_module(name)
"""


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with runner(IMPORTS) as found:
        yield found


def run_page(run: Run, program: str, folder: Path) -> dict[int, str]:
    """Run a page's Python in a folder; what each line printed."""
    (folder / "page.py").write_text(program)
    found = run(RECORDER, folder)
    assert found.code == 0, found.err
    return {int(line): text for line, text in json.loads((folder / "printed.json").read_text()).items()}


def numbers(text: str) -> list[tuple[float, float]]:
    """Each number in a text, and what it may be off by: its last digit, or 5 %, as processors round differently."""
    found = []
    for match in NUMBER.finditer(text):
        written = match[0].rstrip("% ").replace(",", "").replace("−", "-")
        share = 0.01 if match[1] else 1.0
        digits = len(written.partition(".")[2].partition("e")[0])
        value = float(written) * share
        found.append((value, max(share * 10.0**-digits, 0.05 * abs(value))))
    return found


def without_numbers(text: str) -> str:
    return " ".join(NUMBER.sub("#", text).split())


def is_printed(value: float, slack: float, printed: list[tuple[float, float]]) -> bool:
    return any(abs(value - other) <= slack + 1e-9 for other, _ in printed)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_blocks_run(page: Path, run: Run, tmp_path: Path) -> None:
    """The Python of a page runs from top to bottom as one program, in an empty folder.

    A number in a comment beside `print` is what that line prints. A number in a tutorial's quotations and tables is
    printed somewhere on its page, and so are the words of its quotations, up to three dots.
    """
    program = "\n".join(code_blocks(page, "python"))
    if "interop.onnx" in program and os.environ.get("CI") != "true":
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    if "interop.torchmetrics" in program:
        pytest.importorskip("torchmetrics", reason="torchmetrics is not installed")
    if not program:
        return
    printed = run_page(run, program, tmp_path)
    for i, line in enumerate(program.splitlines(), 1):
        beside = re.fullmatch(r"\s*print\(.*\)  # ([\d<\[−-].*)", line)
        if beside:
            shown = numbers(printed[i])
            assert all(is_printed(*number, shown) for number in numbers(beside[1])), f"{line} prints {printed[i]}"
    if page.parent.name == "tutorials":
        said = "\n".join(printed.values())
        shown = numbers(said)
        for line in page.read_text().splitlines():
            if line.startswith(("> ", "| ")):
                assert all(is_printed(*number, shown) for number in numbers(line)), f"not printed: {line}"
        for part in " … ".join(quotations(page)).split("…"):
            assert without_numbers(part) in without_numbers(said), f"not printed: {part}"


def test_the_examples_for_contributors_explain_their_settings() -> None:
    """What is copied from the page passes the contract of settings."""
    trees = [ast.parse(block) for block in code_blocks(ROOT / "CONTRIBUTING.md", "python")]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert len(classes) == 3
    for made in classes:
        (init,) = [node for node in made.body if getattr(node, "name", "") == "__init__"]
        assert isinstance(init, ast.FunctionDef)
        for setting in init.args.kwonlyargs:
            explained = re.search(rf"^ *{setting.arg}  +\S", ast.get_docstring(made) or "", re.MULTILINE)
            assert explained or setting.arg == "base", (made.name, setting.arg)


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_notebooks_are_the_tutorials(page: Path) -> None:
    assert path_of(page).read_text() == notebook(page), "run scripts/notebooks.py"


def commands(text: str) -> list[list[str]]:
    """The commands of temperance in a page, as words."""
    lines = "\n".join(re.findall(r"```sh[^\n]*\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("temperance ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_those_of_the_command_line(page: Path) -> None:
    for words in commands(page.read_text()):
        parser().parse_args(words)


def test_the_first_commands_run(run: Run, tmp_path: Path) -> None:
    """From a table of predictions to ONNX, with nothing but what the start page says."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    start = ROOT / "docs" / "index.md"
    run_page(run, code_blocks(start, "python")[0], tmp_path)
    for words in commands(start.read_text())[1:]:  # the first is the demo, which has its own test
        found = run(command(*words), tmp_path)
        assert found.code == 0, found.err
    assert {"report.html", "calibrated.csv", "cal.onnx"} <= {path.name for path in tmp_path.iterdir()}
    [runtime] = code_blocks(start, "py")
    found = run(runtime + "probs.tofile('probs.bin')", tmp_path)
    assert found.code == 0, found.err
    with_temperance = temperance.read_predictions(tmp_path / "calibrated.csv").scores.numpy()
    np.testing.assert_allclose(np.fromfile(tmp_path / "probs.bin", "f").reshape(200, 100), with_temperance, atol=1e-5)


# ----------------------------------------------------------------------------------- the site's page for every method


def test_every_entry_of_every_registry_has_its_page() -> None:
    made = dict(pages())
    wanted = {page_path(kind, entry["name"]) for kind in KINDS for entry in described(kind)}
    assert wanted == {path for path in made if not path.endswith("index.md")}
    assert all(f"registry:{kind}" in (ROOT / "mkdocs.yml").read_text() for kind in KINDS)
    assert not [path for path, text in made.items() if "## Settings" not in text and not path.endswith("index.md")]
    for kind in KINDS:  # a reader finds a name in the alphabet
        names = [Path(path).stem for path in made if path.startswith(f"reference/{kind}/")]
        assert names == ["index", *sorted(names[1:])]


@pytest.mark.parametrize("kind", ["metrics", "calibrators", "objectives", "losses", "heads"])
def test_every_method_has_a_formula_a_use_and_a_trap(kind: str) -> None:
    """And docs/methods.toml says nothing of methods that are not there."""
    notes = tomllib.loads((ROOT / "docs" / "methods.toml").read_text())[kind]
    assert set(notes) == set(REGISTRIES[kind].names)
    for name, note in notes.items():
        assert note["formula"] and note["when"], name
        in_docstring = documented(REGISTRIES[kind][name].__doc__ or "").trap
        assert bool(note.get("trap")) != bool(in_docstring), f"{name}: one trap, in methods.toml or in the docstring"


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_pages_of_methods_show_works(kind: str) -> None:
    """The Python of each page runs, and its commands are those of the command line."""
    for entry in described(kind):
        thing = REGISTRIES[kind][entry["name"]] if kind in REGISTRIES else None
        python, command = uses(kind, entry["name"], thing)
        for words in commands(f"```sh\n{command}\n```"):
            parser().parse_args(words)
        if kind == "heads":
            python = python.replace("().fit", "(epochs=1).fit")
        if entry["name"] not in ("auto", "kde-ece-marginal"):
            exec(python, made_up())


def made_up() -> dict[str, Any]:
    """What the examples of methods take for granted."""
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(60, 3, generator=generator)
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=generator).squeeze(1)
    rows = torch.randn(60, 8, generator=generator)
    return {
        "logits": logits.requires_grad_(),
        "new_logits": logits.detach(),
        "probs": logits.detach().softmax(1),
        "labels": labels,
        "indices": torch.arange(60),
        "images": torch.randint(256, (2, 32, 32, 3), generator=generator).byte(),
        "features": Features.of(rows, labels, val_features=rows, val_labels=labels),
    }


@pytest.mark.slow
def test_the_python_of_the_readme_has_the_types_it_says(tmp_path: Path) -> None:
    """As a user's type checker reads it: the package ships its types."""
    program = tmp_path / "readme.py"
    program.write_text("\n".join(code_blocks(ROOT / "README.md", "python")))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), str(program)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def test_commands_of_the_page_on_shift_run_and_say_what_it_quotes(run: Run, tmp_path: Path) -> None:
    """After its first block of Python has written the files."""
    page = ROOT / "docs" / "shift.md"
    run_page(run, code_blocks(page, "python")[0], tmp_path)
    said = ""
    for words in commands(page.read_text()):
        found = run(command(*words), tmp_path)
        assert found.code == 0, found.err
        said += found.out
    quotes = quotations(page)
    assert len(quotes) == 2 and all(quote in " ".join(said.split()) for quote in quotes)


def test_commands_of_the_page_on_segmentation_run(run: Run, tmp_path: Path) -> None:
    """On the files that its Python writes."""
    page = ROOT / "docs" / "tutorials" / "segmentation.md"
    run_page(run, "\n".join(code_blocks(page, "python")), tmp_path)
    (tmp_path / "calibrated.npz").unlink()
    for words in commands(page.read_text()):
        found = run(command(*words), tmp_path)
        assert found.code == 0, found.err
    assert np.load(tmp_path / "calibrated.npz")["probs"].shape == (20, 4, 48, 48)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """To a file, or to a page that is made when the site is built."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            path = (page.parent / target).resolve()
            assert path.exists() or path.relative_to(ROOT / "docs").as_posix() in MADE, f"{page.name} links to {target}"


def test_tables_are_up_to_date() -> None:
    """What `python scripts/tables.py` would write is what is there."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        assert filled(page.read_text()) == page.read_text(), f"run scripts/tables.py: {page.name} is out of date"
    for path, picture in drawn().items():
        assert path.read_text() == picture, f"run scripts/tables.py: {path.name} is out of date"


def test_no_table_is_empty() -> None:
    """Neither a head without rows, nor a block that `scripts/tables.py` left blank."""
    texts = {str(page): page.read_text() for page in PAGES} | dict(pages())
    without_rows = re.compile(r"^\|[-:| ]+\|\n(?!\|)|<!-- table: [\w ]+ -->\s*<!-- end -->", re.MULTILINE)
    assert [name for name, text in texts.items() if without_rows.search(f"{text}\n")] == []


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


def test_the_wheel_is_as_large_as_the_docs_say() -> None:
    """A wheel is a zip archive of the package."""
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in (ROOT / "src" / "temperance").rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                archive.write(path)
    for page in ("README.md", "docs/index.md"):
        [said] = re.findall(r"The wheel is ([\d.]+) MB", (ROOT / page).read_text())
        assert wheel.tell() / 1e6 == pytest.approx(float(said), abs=0.1), page


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
