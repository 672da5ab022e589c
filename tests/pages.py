"""An HTML page as its elements, for the tests of reports."""

from html.parser import HTMLParser

from temperance.markup import VOID


class Page(HTMLParser):
    """A page as its elements: (name, attributes, text directly inside), and a check that all are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.tables: list[tuple[str, list[list[str]]]] = []
        self.open: list[int] = []
        self.keys: set[int] = set()  # elements inside the key of a legend
        self.feed(text)
        self.close()
        assert not self.open, "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if any("key" in (self.elements[i][1].get("class") or "").split() for i in self.open):
            self.keys.add(len(self.elements))
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self.open.append(len(self.elements) - 1)
        if tag == "table":
            self.tables.append((dict(attrs).get("class") or "", []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("th", "td"):
            self.tables[-1][1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self.open.pop()][0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open:
            self.elements[self.open[-1]][2].append(data)
            if {self.elements[i][0] for i in self.open} & {"th", "td"}:
                cells = self.tables[-1][1][-1]
                cells[-1] += f" {data}" if cells[-1] else data

    def all(self, name: str, class_: str | None = None) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, "".join(text))
            for element, attributes, text in self.elements
            if element == name and (class_ is None or class_ in (attributes.get("class") or "").split())
        ]

    def drawn(self, name: str, class_: str) -> list[dict[str, str | None]]:
        """The attributes of elements of pictures, without those of the legends."""
        return [
            attributes
            for i, (element, attributes, _) in enumerate(self.elements)
            if element == name and class_ in (attributes.get("class") or "").split() and i not in self.keys
        ]

    def table(self, class_: str) -> list[list[str]]:
        """The rows of the tables of this class, their heads too: the text of each cell."""
        return [row for name, rows in self.tables if name == class_ for row in rows]

    @property
    def text(self) -> str:
        return " ".join("".join(text) for element, _, text in self.elements if element not in ("script", "style"))
