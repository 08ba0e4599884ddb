"""docvqa: forms, receipts and letters of 8 to 14 lines, to be transcribed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from oneglance.tasks.pages import words as w
from oneglance.tasks.pages.page import MARGIN, ROW, SHEET, Page, Sheet, fitted
from oneglance.tasks.pages.pick import Pick

PROMPTS: Final = ("Transcribe the document.", "Read the document aloud.", "What does the document say?")
BODY_FACES: Final = ("sans", "humanist", "serif", "slab", "mono")


def document(pick: Pick) -> Sheet:
    """A page of one of the three kinds."""
    return pick.one((form, receipt, letter))(pick)


def code(pick: Pick) -> str:
    """A reference such as K7-4025."""
    return f"{pick.one('ABCDEFGHJKLMNPRSTUVWXYZ')}{pick.whole(1, 9)}-{pick.number(1000, 9999)}"


def date(pick: Pick) -> str:
    """A date such as 14 March 2024."""
    day, month = pick.pair([str(d) for d in range(1, 29)], w.MONTHS)
    return f"{day} {month} {pick.whole(1998, 2029)}"


def person(pick: Pick) -> str:
    """A first and a last name."""
    return " ".join(pick.pair(w.FIRST, w.LAST))


def street(pick: Pick) -> str:
    """An address such as 214 Park Lane."""
    return f"{pick.number(100, 999)} {pick.one(w.STREETS)} {pick.one(w.STREET_KINDS)}"


def price(pick: Pick) -> str:
    """An amount with two decimals."""
    return f"{pick.whole(1, 99)}.{pick.whole(0, 99):02d}"


FIELDS: Final[dict[str, Callable[[Pick], str]]] = {
    "Name": person,
    "Street": street,
    "City": lambda p: f"{p.one(w.CITIES)} {p.number(10000, 99999)}",
    "Phone": lambda p: f"{p.number(100, 999)} {p.number(1000, 9999)}",
    "Date": date,
    "Born": date,
    "Office": lambda p: " ".join(p.pair(w.CITIES, w.DEPARTMENTS)),
    "Order": code,
    "Account": lambda p: f"{p.number(1000, 9999)} {p.number(1000, 9999)}",
    "Amount": price,
    "Item": lambda p: " ".join(p.pair(w.ADJECTIVES, w.GOODS)),
    "Room": lambda p: f"{p.number(100, 999)}",
    "Manager": person,
    "Gift": lambda p: " and ".join(p.pair(w.ITEMS, w.ITEMS)),
    "Day": lambda p: p.one(w.WEEKDAYS),
}


class _Typist:
    """Sets the lines of one document, one per row, and keeps the transcription."""

    def __init__(self, pick: Pick, num_lines: int) -> None:
        self.page = Page(SHEET, pick.one(w.PAPERS))
        self.face = pick.one(BODY_FACES)
        self.size = pick.whole(15, 18)
        self.ink = pick.one(w.INKS)
        self.left = pick.whole(MARGIN, 24)
        self.row = pick.whole(0, SHEET[1] // ROW - num_lines)
        self.shift = pick.whole(-4, 4)
        self.lines: list[str] = []

    @property
    def middle(self) -> float:
        """The middle of the current row, px."""
        return ROW * self.row + ROW / 2 + self.shift

    def line(self, text: str, *, face: str = "", size: int = 0, centred: bool = False) -> None:
        """One line of text."""
        face, room = face or self.face, SHEET[0] - MARGIN - self.left
        size = fitted(face, size or self.size, text, SHEET[0] - 2 * MARGIN if centred else room)
        at, align = (SHEET[0] / 2, "centre") if centred else (self.left, "left")
        self.page.text((at, self.middle), text, face=face, size=size, fill=self.ink, align=align)
        self._next(text)

    def columns(self, label: str, value: str, *, face: str, at: float, align: str) -> None:
        """A label and its value further right on the same line."""
        size = fitted(self.face, self.size, f"{label}  {value}", SHEET[0] - MARGIN - self.left)
        end = self.page.text((self.left, self.middle), label, face=face, size=size, fill=self.ink)
        if align == "left":
            size = fitted(self.face, size, value, SHEET[0] - MARGIN - max(at, end + 6))
            at = max(at, end + 6)
        self.page.text((at, self.middle), value, face=self.face, size=size, fill=self.ink, align=align)
        self._next(f"{label} {value}")

    def rule(self) -> None:
        """A thin line above the current row."""
        y = ROW * self.row + self.shift
        self.page.pen.line((self.left, y, SHEET[0] - MARGIN, y), fill=(170, 170, 170), width=1)

    def sheet(self, pick: Pick) -> Sheet:
        """The finished page."""
        self.page.finish(pick)
        return Sheet(self.page, pick.one(PROMPTS), "\n".join(self.lines))

    def _next(self, text: str) -> None:
        self.lines.append(text)
        self.row += 1


def form(pick: Pick) -> Sheet:
    """A title and labelled fields."""
    fields = pick.some(list(FIELDS), pick.whole(7, 13))
    typist = _Typist(pick, len(fields) + 1)
    typist.line(f"{pick.one(w.DEPARTMENTS)} {pick.one(('Form', 'Record', 'Claim'))}", face="bold", size=19)
    label_face = pick.one((typist.face, "bold"))
    at = pick.one((0.0, 84.0))
    ruled = pick.chance(0.4)
    for name in fields:
        if ruled:
            typist.rule()
        typist.columns(f"{name}:", FIELDS[name](pick), face=label_face, at=at, align="left")
    return typist.sheet(pick)


def receipt(pick: Pick) -> Sheet:
    """A shop's name, goods with prices, and the sum."""
    num_goods = pick.whole(3, 7)
    extras = pick.some((0, 1, 2), pick.whole(1, 3))
    typist = _Typist(pick, num_goods + 4 + len(extras))
    typist.line(" ".join(pick.pair(w.CITIES, w.SHOPS)), face="bold", size=20, centred=True)
    typist.line(street(pick), centred=True)
    if 0 in extras:
        typist.line(f"{date(pick)} {pick.whole(8, 21)}:{pick.whole(0, 59):02d}", centred=True)
    right, total = SHEET[0] - pick.whole(MARGIN, 20), 0
    for item in pick.some(w.ITEMS + w.GOODS, num_goods):
        count, cents = pick.whole(1, 9), pick.value_for(item, 100, 9999)
        total += cents
        typist.columns(
            f"{count} {item}", f"{cents // 100}.{cents % 100:02d}", face=typist.face, at=right, align="right"
        )
    typist.rule()
    typist.columns("Total", f"{total // 100}.{total % 100:02d}", face=typist.face, at=right, align="right")
    if 1 in extras:
        typist.line(f"Paid by {pick.one(('card', 'cash', 'phone'))} {pick.number(1000, 9999)}")
    if 2 in extras:
        typist.line(pick.one(("Thank you", "Come again", "See you soon")), centred=True)
    typist.line(f"Served by {pick.one(w.FIRST)}", centred=True)
    return typist.sheet(pick)


BODY: Final[tuple[Callable[[Pick], str], ...]] = (
    lambda p: f"your {' '.join(p.pair(w.ADJECTIVES, w.GOODS))} is ready",
    lambda p: f"we sent {p.number(100, 999)} boxes of {p.one(w.ITEMS)}",
    lambda p: f"it leaves {' for '.join(p.pair(w.CITIES, w.CITIES))}",
    lambda p: f"please call {person(p)}",
    lambda p: f"on {p.one(w.WEEKDAYS)} at {p.whole(8, 19)}:{p.whole(0, 59):02d}",
    lambda p: f"the {p.one(w.ADJECTIVES)} {' and '.join(p.pair(w.GOODS, w.GOODS))}",
    lambda p: f"order {code(p)} costs {price(p)}",
    lambda p: f"meet us at {street(p)}",
    lambda p: f"bring {' or '.join(p.pair(w.ITEMS, w.ITEMS))}",
    lambda p: f"{p.one(w.DEPARTMENTS)} will pay {price(p)}",
    lambda p: f"from {date(p)}",
    lambda p: f"ask for the {' '.join(p.pair(w.ADJECTIVES, w.ITEMS))}",
    lambda p: f"{' and '.join(p.pair(w.FIRST, w.FIRST))} agree",
    lambda p: f"the room is {p.number(100, 999)} in {p.one(w.CITIES)}",
)


def letter(pick: Pick) -> Sheet:
    """Place and date, greeting, body, closing, name."""
    body = pick.some(BODY, pick.whole(4, 10))
    typist = _Typist(pick, len(body) + 4)
    typist.line(f"{pick.one(w.CITIES)}, {date(pick)}")
    typist.line(f"{pick.one(('Dear', 'Hello', 'To'))} {pick.one(w.FIRST)},")
    for index, phrase in enumerate(body):
        text = phrase(pick)
        end = "." if index == len(body) - 1 else ","
        typist.line((text[0].upper() + text[1:] if index == 0 else text) + end)
    typist.line(pick.one(("Kind regards,", "Yours truly,", "Best wishes,")))
    typist.line(person(pick))
    return typist.sheet(pick)
