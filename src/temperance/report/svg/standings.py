"""The picture of methods over several sets: how often each wins, and how often it does harm."""

from __future__ import annotations

import math
from collections.abc import Sequence

from temperance.jobs.standings import Standing
from temperance.markup import Markup, tag
from temperance.metrics.significance import Interval
from temperance.report.formats import percent, percent_range
from temperance.report.svg.drawing import RIGHT, Plot, Scale, label, picture

LINE = 17.0  # from one method to the next
TOP = 40.0
NAMES_END, BETWEEN = 186.0, 46.0  # where names end, and the space between the two panels
LONGEST = 26  # letters of a name that fit
TICKS = (0.0, 0.5, 1.0)


def standings_chart(found: Sequence[Standing]) -> Markup:
    """A line for each method: the share of comparisons that it wins, and the share of sets on which it does harm."""
    bottom = TOP + LINE * len(found)
    width = (RIGHT - NAMES_END - BETWEEN) / 2
    y = Scale(0, len(found), TOP, bottom)
    wins = Plot(Scale(0, 1, NAMES_END, NAMES_END + width), y)
    harm = Plot(Scale(0, 1, RIGHT - width, RIGHT), y)
    parts = []
    for plot, title in ((wins, "wins"), (harm, "harm")):
        parts.append(label((plot.x.start + plot.x.end) / 2, 12, title, anchor="middle"))
        for tick in TICKS:
            parts.append(tag("path", d=f"M{plot.x(tick):.1f},{TOP - 6:g}V{bottom:g}", class_="grid"))
            parts.append(label(plot.x(tick), TOP - 12, percent(tick, 0), anchor="middle"))
    for i, standing in enumerate(found):
        at = i + 0.5
        name = standing.method if len(standing.method) <= LONGEST else f"{standing.method[: LONGEST - 1]}…"
        parts.append(label(NAMES_END - 8, y(at) + 4, name, anchor="end"))
        parts += [_share(wins, at, standing.wins, "under"), _share(harm, at, standing.harm, "over")]
    described = f"Wins and harm of {len(found)} methods, the lowest mean rank first; the table has the numbers."
    return picture(bottom + 8, described, *parts)


def _share(plot: Plot, at: float, found: Interval, class_: str) -> Markup:
    """A dot, with its interval if there is one."""
    hint = percent(found.value, 1)
    parts = []
    if not math.isnan(found.low):
        hint += f", between {percent_range(found.low, found.high, 1)}"
        parts.append(plot.line([(found.low, at), (found.high, at)], "whisker"))
    return tag("g", tag("title", hint), *parts, plot.dot(found.value, at, class_))
