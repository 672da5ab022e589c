"""Draw the pictures of the docs from the predictions that ship: python scripts/pictures.py"""

from pathlib import Path

from matplotlib.figure import Figure

from temperance.calibrators import Auto
from temperance.demo import demo_predictions
from temperance.metrics import ece
from temperance.report import draw_reliability_pair

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"


def reliability() -> None:
    """Before and after: the picture at the top of the README."""
    val, test = demo_predictions()
    fitted = Auto().fit(val.scores, val.labels)
    before = ece.stats(test.scores, test.labels, from_logits=True)
    after = ece.stats(fitted.predict_proba(test.scores), test.labels)
    left, _ = draw_reliability_pair(before, after)
    figure = left.figure
    assert isinstance(figure, Figure)
    figure.savefig(PICTURES / "reliability.png", dpi=110, facecolor="white", bbox_inches="tight")


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    reliability()
