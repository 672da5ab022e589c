"""The architecture as a test: a module imports only from its own layer's packages or from layers above it."""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "temperance"

# From the top of the house to the bottom; what stands in one line is one layer.
LAYERS = [
    {
        "errors",
        "arrays",
        "registry",
        "numerics",
        "compiled",
        "threads",
        "sorting",
        "isotonic",
        "saddlepoint",
        "files",
        "progress",
        "settings",
        "markup",
        "showing",
    },
    {"metrics", "objectives", "calibrators", "losses"},
    {"predictions", "jobs", "data", "demo"},
    {"training", "heads", "diagnose", "report", "interop"},
    {"cli", "__main__"},
]

# Within layer 1 the packages stand beside each other and know nothing of their neighbours, but for these.
NEIGHBOURS = {("calibrators", "objectives"), ("losses", "metrics")}


def imports(path: Path) -> set[str]:
    """The parts of temperance that a file imports, by their first name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = (
                [f"{node.module}.{alias.name}" for alias in node.names]
                if node.module == "temperance"
                else [node.module]
            )
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("temperance.")}
    return found


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def files() -> list[Path]:
    return [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]


def layer(part: str) -> int:
    return next(i for i, parts in enumerate(LAYERS) if part in parts)


def test_every_part_has_a_layer() -> None:
    known = set().union(*LAYERS)
    assert {part_of(path) for path in files()} <= known


def test_imports_point_upwards() -> None:
    wrong = []
    for path in files():
        part = part_of(path)
        for other in imports(path) & set().union(*LAYERS):
            if other == part:
                continue
            beside = layer(other) == layer(part) == 1 and (part, other) not in NEIGHBOURS
            if layer(other) > layer(part) or beside:
                wrong.append(f"{path.relative_to(SOURCE)} imports {other}")
    assert not wrong


def test_matplotlib_is_drawn_with_only_in_the_report() -> None:
    for path in files():
        if part_of(path) != "report":
            assert not re.search(r"^\s*(from|import) matplotlib", path.read_text(), re.MULTILINE), path


def test_nothing_is_unpickled() -> None:
    for path in files():
        text = path.read_text()
        for word in ("pickle.load", "allow_pickle=True", "weights_only=False"):
            assert word not in text, path
        # With weights_only torch makes tensors and plain values, and runs nothing.
        assert text.count("torch.load(") == len(re.findall(r"torch\.load\([^)]*weights_only=True\)", text)), path
