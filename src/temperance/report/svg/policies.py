"""The picture of several ways to decide: what each costs, with its interval."""

from __future__ import annotations

from temperance.jobs.decisions import Decisions
from temperance.markup import Markup, tag
from temperance.report.svg.drawing import RIGHT, Plot, Scale, label, number_text, picture, ticks_between

LINE, TOP = 34.0, 8.0  # from one policy to the next, and where the first begins
LEFT = 12.0


def policies_chart(found: Decisions) -> Markup:
    """A line for each policy: its name, and below it a dot with the interval of its mean cost."""
    policies = found.policies
    low, high = min(0.0, *(each.low for each in policies)), max(0.0, *(each.high for each in policies))
    bottom = TOP + LINE * len(policies)
    plot = Plot(Scale(low, high + 0.02 * (high - low), LEFT, RIGHT), Scale(len(policies), 0, bottom, TOP))
    ticks = ticks_between(plot.x.low, plot.x.high, 5)
    parts = [tag("path", d=f"M{plot.x(tick):.1f},{TOP:g}V{bottom:g}", class_="grid") for tick in ticks]
    for i, policy in enumerate(policies):
        at = i + 0.72
        between = plot.line([(policy.low, at), (policy.high, at)], "whisker")
        hint = f"{found.money(policy.cost)}, between {found.money(policy.low)} and {found.money(policy.high)}"
        parts.append(label(LEFT, plot.y(i) + 14, policy.name))
        parts.append(tag("g", tag("title", hint), between, plot.dot(policy.cost, at, "dot")))
    described = f"The mean cost of {len(policies)} ways to decide, with intervals; the table has the numbers."
    return picture(bottom + 42, described, *parts, plot.x_axis(ticks, f"cost per {found.row_name}", number_text))
