"""A page of the site for every entry of the registries, made when the site is built.

What a page says comes from four places: the registry (name, summary, settings, claims), the docstring (how it works, an
example), `docs/methods.toml` (formula, when to use it, the trap) and the demo (numbers and pictures).
"""

import inspect
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from temperance.cli import parser
from temperance.cli.list_methods import KINDS, PACKAGES, described, registry
from temperance.cli.manual import MANUAL

DOCS = Path(__file__).resolve().parent.parent / "docs"
REGISTRIES = {kind: registry(kind) for kind in PACKAGES}

# What stands above the list of each kind: its first line, and the page that explains the kind.
ABOUT = {
    "metrics": ("Numbers that say how far confidence can be trusted", "metrics.md"),
    "calibrators": ("Corrections after training, fitted to held-out predictions", "calibrators.md"),
    "objectives": ("What a calibrator with parameters minimises", "calibrators.md#objectives"),
    "losses": ("Training losses that keep confidence honest", "losses.md"),
    "networks": ("Networks to train on images", "training.md#networks"),
    "heads": ("Classifiers retrained on frozen features", "heads.md"),
    "recipes": ("How the papers trained", "training.md#recipes"),
    "corruptions": ("Ways to degrade images, for `temperance shift`", "training.md"),
}


class Doc(NamedTuple):
    """A docstring in parts, as Markdown."""

    body: str
    trap: str
    example: str
    papers: str


def page_path(kind: str, name: str) -> str:
    """Where the page of an entry is, within the docs."""
    return f"reference/{kind}/{name}.md"


def pages(shown: Callable[[str, str], str] = lambda kind, name: "") -> Iterator[tuple[str, str]]:
    """The path and the Markdown of every page: an index for each kind, and a page for each entry.

    `shown(kind, name)` gives the picture of an entry.
    """
    notes = tomllib.loads((DOCS / "methods.toml").read_text())
    for kind in KINDS:
        entries = sorted(described(kind), key=lambda entry: str(entry["name"]))  # so that a reader finds a name
        yield f"reference/{kind}/index.md", index(kind, entries)
        for entry in entries:
            name = entry["name"]
            yield page_path(kind, name), page(kind, entry, notes.get(kind, {}).get(name, {}), shown(kind, name))


def commands_page() -> str:
    """Every command: what it does, examples, and its options as `--help` shows them."""
    (commands,) = (action.choices for action in parser()._actions if isinstance(action.choices, dict))
    parts = ["# The command line", "`temperance COMMAND --help` shows the same."]
    for name, (words, examples) in MANUAL.items():
        lines = "\n".join(f"temperance {example}" for example in examples)
        command = commands[name]
        command.description = command.epilog = None
        options = command.format_help().strip()
        parts += [f"## {name}", plain(words), f"```sh\n{lines}\n```"]
        parts += ["<details markdown><summary>Options</summary>", f"```text\n{options}\n```", "</details>"]
    return "\n\n".join(parts) + "\n"


def index(kind: str, entries: list[dict[str, Any]]) -> str:
    """The list of a kind."""
    summary, guide = ABOUT[kind]
    rows = [f"| [{entry['name']}]({entry['name']}.md) | {plain(entry['summary'])} |" for entry in entries]
    lines = [f"# {kind.capitalize()}", f"{summary}: [the guide](../../{guide}).", ""]
    command = f"On the command line, `temperance list {kind}` shows the same list."
    return "\n".join([*lines, "| name | what it is |", "|---|---|", *rows, "", command, ""])


def page(kind: str, entry: dict[str, Any], notes: dict[str, str], picture: str = "") -> str:
    """The page of one entry."""
    name = entry["name"]
    thing = REGISTRIES[kind][name] if kind in REGISTRIES else None
    doc = documented(_docstring(kind, thing))
    papers = entry["claims"].get("paper") or notes.get("paper") or doc.papers
    parts = [
        "---\nhide: [toc]\n---",
        f"# {name}",
        f"{plain(entry['summary'])}.",
        notes.get("formula") and f"$$\n{notes['formula'].strip()}\n$$",
        side_by_side(kind, name, thing),
        _section("When to use it", notes.get("when", "")),
        _section("The trap", notes.get("trap", "") or doc.trap),
        _section("What it looks like", picture),
        _section("How it works", doc.body),
        _section("Example", doc.example),
        _section("Settings", settings_table(entry)),
        _section("What is promised", promises(kind, entry["claims"], thing)),
        _section("Papers", papers and f"{papers.rstrip('.')}."),
        f"All [{kind}](index.md) · [the guide](../../{guide_of(kind, entry)})",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text.strip()}" if text else ""


def _docstring(kind: str, thing: Any) -> str:
    if kind == "networks":
        return thing.build.__doc__ or ""
    if kind == "corruptions":
        return thing.apply.__doc__ or ""
    return (thing.__doc__ or "") if thing is not None else ""


def guide_of(kind: str, entry: dict[str, Any]) -> str:
    """The hand-written page that explains an entry among others of its family."""
    family = entry["claims"].get("family")
    return f"calibrators/{family}.md" if kind == "calibrators" and family else ABOUT[kind][1]


# ----------------------------------------------------------------------------------------------------------- docstrings


def documented(doc: str) -> Doc:
    """A docstring without its first line, taken apart.

    Settings are left out, because they are in the table; lines such as `rule="sorted"  what it does` become a list.
    """
    body: list[str] = []
    traps: list[str] = []
    examples: list[str] = []
    papers: list[str] = []
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(doc))[1:]
    for i, block in enumerate(blocks):
        if block.startswith(">>>"):
            examples.append(f"```pycon\n{block}\n```")
        elif block.startswith("The trap"):
            traps.append(re.sub(r"^The trap: (.)", lambda m: m[1].upper(), plain(block)))
        elif re.match(r"[a-z]\w*(, [a-z]\w*)*  +\S", block):
            continue
        elif re.match(r"\S.*?  +\S", block):
            body.append(definitions(block))
        elif block.startswith("    "):
            body.append(block)
        elif i >= len(blocks) - 2 and re.match(r"[A-Z]\w+( et al\.,|,| and) [^(]*(\"|, .*(19|20)\d\d)", block):
            papers += block.splitlines()
        else:
            body.append(plain(block))
    return Doc("\n\n".join(body), "\n\n".join(traps), "\n\n".join(examples), plain(" ".join(papers)))


def markdown_of(doc: str) -> str:
    """A whole docstring as Markdown."""
    parts = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(doc)):
        if block.startswith(">>>"):
            parts.append(f"```pycon\n{block}\n```")
        elif re.match(r"\S.*?  +\S", block):
            parts.append(definitions(block))
        else:
            parts.append(block if block.startswith("    ") else plain(block))
    return "\n\n".join(parts)


def definitions(block: str) -> str:
    """Lines `key  meaning`, indented where a meaning goes on, as a list."""
    lines: list[str] = []
    for line in block.splitlines():
        begun = re.match(r"(\S.*?)  +(\S.*)", line)
        if begun and not line.startswith(" "):
            lines.append(f"- `{begun[1]}`: {plain(begun[2])}")
        else:
            lines.append(f"  {plain(line.strip())}")
    return "\n".join(lines)


def plain(text: str) -> str:
    """Text with the characters escaped that mean something in Markdown."""
    return re.sub(r"\b([A-Z])\*(?=\W)", r"\1\\*", text.replace("<", "&lt;").replace("|", "&#124;"))


# ------------------------------------------------------------------------------------------------------ parts of a page


def side_by_side(kind: str, name: str, thing: Any) -> str:
    """How it is called in Python and on the command line."""
    python, command = uses(kind, name, thing)
    return (
        '<div class="grid" markdown>\n\n'
        f'```python title="Python"\n{python}\n```\n\n```sh title="Command line"\n{command}\n```\n\n</div>'
    )


def uses(kind: str, name: str, thing: Any) -> tuple[str, str]:
    """How an entry is used in Python and on the command line. The tests run the first and parse the second."""
    called = getattr(thing, "__name__", "")
    if kind == "metrics":
        python = f"from temperance.metrics import {called}\n\n{called}(probs, labels)"
        return python, f"temperance evaluate predictions.npz \\\n  --metrics {name}"
    if kind == "calibrators":
        python = f"from temperance.calibrators import {called}\n\n"
        python += f"calibrator = {called}().fit(logits, labels)\nprobs = calibrator.predict_proba(new_logits)"
        command = f"temperance fit {name} held-out.npz \\\n  -o cal.safetensors\n"
        return python, command + "temperance apply cal.safetensors new.npz \\\n  -o calibrated.npz"
    if kind == "objectives":
        python = (
            f'from temperance.calibrators import Temperature\n\nTemperature(objective="{name}").fit(logits, labels)'
        )
        return python, f"temperance fit temperature held-out.npz \\\n  --objective {name} -o cal.safetensors"
    if kind == "losses":
        required, given = ("n_samples=len(labels)", ", indices") if thing.needs_indices else ("", "")
        python = f"from temperance.losses import {called}\n\n"
        python += f"loss = {called}({required})\nloss(logits, labels{given}).backward()"
        return python, f"temperance train images/ --loss {name} -o run"
    if kind == "heads":
        python = f"from temperance.heads import {called}\n\nhead = {called}().fit(features)"
        return python, f"temperance retrain run --head {name} -o retrained"
    if kind == "networks":
        python = "from temperance.training import make_network\n\n"
        python += f'network = make_network(\n    "{name}", classes=10, image_size=32\n)'
        return python, f"temperance train images/ --network {name} -o run"
    if kind == "recipes":
        python = f'from temperance.training import RECIPES\n\nrecipe = RECIPES["{name}"]'
        return python, f"temperance train images/ --preset {name} -o run"
    python = f'from temperance.data import corrupt\n\nworse = corrupt(images, "{name}", severity=3)'
    return python, f"temperance shift run --corruptions {name}"


def settings_table(entry: dict[str, Any]) -> str:
    """Every setting: its default, what it may be and what it is for."""
    rows = []
    for name, default in entry["settings"].items():
        about = entry["about"].get(name, {"may be": "", "purpose": ""})
        rows.append(f"| `{name}` | `{default!r}` | {plain(about['may be'])} | {plain(about['purpose'])} |")
    head = ["| setting | default | may be | what it is for |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) if rows else "It has none."


def promises(kind: str, claims: dict[str, Any], thing: Any) -> str:
    """What the registry says of an entry, in sentences; the contract tests hold each of them."""
    said: list[str] = []
    if kind == "metrics":
        low, high = (f"{end:g}".replace("inf", "∞") for end in claims["range"])
        said.append(f"It lies between {low.replace('-', '−')} and {high}.")
        said += {True: ["Lower is better."], False: ["Higher is better."], None: []}[claims["lower_is_better"]]
        if claims["perfect"] is not None:
            said.append(f"Perfect predictions score {claims['perfect']:g}.")
        said += ["It is a proper score: honest probabilities have the best value on average."] * claims["proper"]
        said += ["Its time grows with the square of the number of samples."] * claims["quadratic"]
    elif kind == "calibrators":
        keeps = claims["preserves_argmax"]
        said.append("It never changes the predicted class." if keeps else "It can change the predicted class.")
        if claims["takes_objective"]:
            said.append("It takes an [objective](../objectives/index.md).")
        said.append(f"It needs at least {claims['min_samples']} samples." if claims["min_samples"] > 1 else "")
    elif kind == "objectives":
        said.append("It is convex." if claims["convex"] else "It is not convex.")
    elif kind == "losses":
        said.append("It looks at each sample separately." if claims["per_sample"] else "It looks at the whole batch.")
        said += ["It is a proper score."] * claims["proper"]
        said += ["It takes target probabilities (mixup) as well as labels."] * claims["soft_targets"]
        if claims["learns_from"]:
            said.append(f"It has a memory: call `update` with the {claims['learns_from']} predictions.")
        same = claims["equals_cross_entropy_at"]
        if same:
            said.append(f"With {', '.join(f'`{n}={v!r}`' for n, v in same.items())} it equals cross-entropy.")
    elif kind == "heads":
        said += ["It needs a validation part."] * claims["needs_val"]
        said += ["It needs at least as many features as classes."] * claims["needs_wide_features"]
        if claims["presets"]:
            said.append(f"Presets: {', '.join(f'`{preset}`' for preset in claims['presets'])}.")
    elif kind == "networks":
        said.append(f"It has {claims['millions']:g} million parameters.")
    return " ".join(filter(None, said))
