"""Docstrings as Markdown for the Python reference: examples become blocks of code, lists of settings become lists."""

from typing import Any

import griffe

from method_pages import markdown_of


class HouseDocstrings(griffe.Extension):
    """Rewrites each docstring when its object has been read."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        if obj.docstring:
            obj.docstring.value = markdown_of(obj.docstring.value)
