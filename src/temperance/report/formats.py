"""Numbers as the page writes them: a true minus sign, and a non-breaking space before a percent sign."""

from __future__ import annotations

import math
import re

from temperance import showing
from temperance.jobs.results import Row, shown
from temperance.metrics import METRICS

PERCENT = "\u00a0%"
MOST_DIGITS = 4  # decimals; with more, a share would be too wide for its column


def percent(value: float, digits: int = 2) -> str:
    """0.0866 as 8.66 %."""
    return set_percent_signs(showing.percent(value, digits))


def percent_down(value: float) -> str:
    """As `percent`, rounded down, so that "at least" stays true: 0.99999 is 99.99 %, but 0.95 in float32 is 95.00 %."""
    return percent(math.floor(value * 1e4 + 7e-4) / 1e4)


def percent_range(low: float, high: float, digits: int) -> str:
    """Two shares with one percent sign."""
    return f"{100 * low:.{digits}f}\u00a0–\u00a0{percent(high, digits)}"


def digits_for(largest: float) -> int:
    """The decimals that shares of up to `largest` need in percent: two, or more if all are small, up to `MOST_DIGITS`.

    >>> digits_for(0.3), digits_for(0.0004), digits_for(1e-9)
    (2, 4, 4)
    """
    return min(max(2, 2 - math.floor(math.log10(100 * largest))), MOST_DIGITS) if largest else 2


def points(change: float, digits: int = 2) -> str:
    """A change of a share, in percentage points."""
    return signed(100 * change, digits)


def signed(value: float, digits: int) -> str:
    """A number with its sign; a number that rounds to zero has none."""
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def value_of(row: Row) -> str:
    """The value of a metric, in percent where its registry entry says so."""
    return _typeset(row, row.value)


def interval_of(row: Row, between: str = "–") -> str:
    """The interval of a metric; nothing where it has none."""
    if math.isnan(row.low):
        return ""
    return f"{_typeset(row, row.low).removesuffix(PERCENT)}\u00a0{between} {_typeset(row, row.high)}"


def set_percent_signs(text: str) -> str:
    """Text with its percent signs spaced as everywhere on the page."""
    return re.sub(r"(\d) ?%", rf"\1{PERCENT}", text)


def duration(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 90:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 5400 else f"{seconds / 3600:.3g} h"


def _typeset(row: Row, value: float) -> str:
    text = shown(value, percent=METRICS[row.metric].percent)
    return set_percent_signs(re.sub("^-", "−", text))
