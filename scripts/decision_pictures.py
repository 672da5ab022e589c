"""The picture of what other thresholds cost, from the example of docs/decisions.md."""

from collections.abc import Callable, Mapping

import torch
from matplotlib.figure import Figure

from family_pictures import title
from temperance import decide
from temperance.demo import demo_predictions
from temperance.report.figures import GUIDE, OVER, UNDER, new_figure

REPTILES = ("crocodile", "dinosaur", "lizard", "snake", "turtle")


def decisions() -> Figure:
    """The mean cost at each threshold, and the decision curve, before and after calibration."""
    _, test = demo_predictions()
    assert test.class_names is not None
    places = torch.tensor([test.class_names.index(name) for name in REPTILES])
    probs = test.scores.double().softmax(1)[:, places].sum(1)
    curve = decide(probs, torch.isin(test.labels, places), positive=1, false_alarm=1, miss=20).curve
    assert curve is not None and curve.chosen is not None
    figure = new_figure(7.4, 3.0)
    costs, benefits = figure.subplots(1, 2)
    for name, color in (("these probabilities", OVER), ("calibrated by auto", UNDER)):
        costs.plot(curve.thresholds, curve.cost[name], lw=1.4, color=color, label=name)
        benefits.plot(curve.thresholds, curve.net_benefit[name], lw=1.4, color=color)
    costs.set(xlabel="act above a probability of", ylabel="cost per sample", xlim=(0, 0.4), ylim=(0, 0.45))
    costs.legend(loc="upper left", bbox_to_anchor=(0.15, 1), fontsize="small", frameon=False)
    title(costs, "false alarm 1, miss 20")
    benefits.plot(curve.thresholds, curve.net_benefit["act on all"], lw=1.2, ls="--", color=GUIDE)
    benefits.annotate("act on all", (0.06, 0.006), fontsize="small", color=GUIDE)
    benefits.axhline(0, lw=1.2, ls=":", color=GUIDE)
    benefits.annotate("act on none", (0.3, 0.001), fontsize="small", color=GUIDE)
    benefits.set(xlabel="threshold probability", ylabel="net benefit", xlim=(0, 1), ylim=(-0.006, 0.052))
    title(benefits, "decision curve")
    for ax in (costs, benefits):
        ax.axvline(curve.chosen, lw=1, ls="--", color=GUIDE, zorder=0)
    return figure


PICTURES: Mapping[str, Callable[[], Figure]] = {"decisions": decisions}
