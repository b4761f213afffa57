"""Reading pages in tests, with the standard library's parser."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

from django.http import HttpResponse


@dataclass(frozen=True, kw_only=True)
class Element:
    tag: str
    attributes: dict[str, str]
    text: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> str:
        return self.attributes.get(name, "")


VOID = {"meta", "link", "input", "img", "br", "hr"}


class Document(HTMLParser):
    """All elements of a page in their order; `text` of each is what stands anywhere inside it."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(markup)

    @classmethod
    def of(cls, response: HttpResponse) -> "Document":
        return cls(response.content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag=tag, attributes={name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop().tag != tag:
            pass

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text.append(data)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Elements with these attribute values; `class_="x"` means that x is among the classes."""
        return [element for element in self.elements if element.tag == tag and _fits(element, attributes)]

    def texts(self, tag: str, **attributes: str) -> list[str]:
        return [" ".join("".join(element.text).split()) for element in self.all(tag, **attributes)]


def _fits(element: Element, attributes: dict[str, str]) -> bool:
    return all(
        value in element["class"].split() if name == "class_" else element[name] == value
        for name, value in attributes.items()
    )
