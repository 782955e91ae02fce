"""Reads a report page as a visitor has it: its elements, its cells with the numbers behind them."""

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "input", "link", "img", "hr"}
NUMBER = re.compile(r"(?<![\w.])[-+−]?\d+(?:\u202f\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass
class Element:
    """An element with its attributes, its children and all its text."""

    tag: str
    attrs: dict
    parent: "Element | None" = field(default=None, repr=False)
    children: list = field(default_factory=list, repr=False)
    parts: list = field(default_factory=list, repr=False)

    @property
    def text(self):
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    @property
    def values(self):
        return [float(value) for value in self.attrs.get("data-values", "").split()]

    def all(self, *tags):
        found = [self] if self.tag in tags else []
        return found + [each for child in self.children for each in child.all(*tags)]

    def has(self, name, value):
        return value in (self.attrs.get(name) or "").split()


class Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.root = self.at = Element("root", {})

    def handle_starttag(self, tag, attrs):
        made = Element(tag, dict(attrs), self.at)
        self.at.children.append(made)
        self.at.parts.append(made)
        if tag not in VOID:
            self.at = made

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        assert self.at.tag == tag, f"</{tag}> closes <{self.at.tag}>"
        self.at = self.at.parent

    def handle_data(self, data):
        self.at.parts.append(data)


def read(html):
    """The page's root; elements that are not closed, or not in order, are an error."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.at is reader.root, f"<{reader.at.tag}> is not closed"
    return reader.root


def title_of(table):
    """The heading that names a table."""
    root = table
    while root.parent:
        root = root.parent
    return next(h.text for h in root.all("h2", "h3") if h.attrs.get("id") == table.attrs["aria-labelledby"])


def known(document):
    """Every number in a JSON document, and the sets of numbers that stand in one object; JSON in a text counts."""
    numbers, together = set(), []

    def walk(value):
        mine = set()
        if isinstance(value, dict):
            for part in value.values():
                mine |= walk(part)
            together.append(mine)
        elif isinstance(value, list):
            for part in value:
                found = walk(part)
                mine |= found if isinstance(part, int | float | str) else set()
        elif isinstance(value, str) and value.startswith("{"):
            mine = walk(json.loads(value))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            mine = {float(value)}
        numbers.update(mine)
        return mine

    walk(document)
    return numbers, together


def shows(text, value):
    """Whether a number in a text is the value, or 100 times it, rounded to the digits that the text has."""
    plain = text.replace("\u202f", "").replace("−", "-")
    decimals = len(plain.split("e")[0].partition(".")[2])
    exponent = int(plain.partition("e")[2] or 0)
    room = 0.5 * 10.0 ** (exponent - decimals) + 1e-9 * abs(value) * 100 + 1e-12
    if abs(float(plain) - value) <= room or abs(float(plain) - 100 * value) <= room:
        return True
    return "." in plain and abs(float(plain) - value) <= 1e-5 * abs(value)  # sums with six digits
