"""Draw the pictures of the docs from the predictions that ship: python scripts/pictures.py [NAME …]"""

import io
import sys
from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

import decision_pictures
import family_pictures
import loss_pictures
import result_pictures
import shift_pictures
from temperance.calibrators import Auto
from temperance.demo import demo_predictions
from temperance.metrics import ece
from temperance.report import draw_reliability_pair

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"


def reliability() -> Figure:
    """Before and after: the picture at the top of the README."""
    val, test = demo_predictions()
    fitted = Auto().fit(val.scores, val.labels)
    before = ece.stats(test.scores, test.labels, from_logits=True)
    after = ece.stats(fitted.predict_proba(test.scores), test.labels)
    left, _ = draw_reliability_pair(before, after)
    figure = left.figure
    assert isinstance(figure, Figure)
    return figure


def save(figure: Figure, path: Path) -> None:
    """A picture twice as wide as it is shown, with 256 colours: sharp, and small as a file."""
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=180, facecolor="white", bbox_inches="tight", pad_inches=0.08)
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    drawings: dict[str, Callable[[], Figure]] = {
        "reliability": reliability,
        **family_pictures.FAMILIES,
        **loss_pictures.FAMILIES,
        **result_pictures.STUDIES,
        **shift_pictures.PICTURES,
        **decision_pictures.PICTURES,
    }
    PICTURES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or drawings:
        save(drawings[name](), PICTURES / f"{name}.png")
