"""What the built-in pages are filled with."""

from __future__ import annotations

NAMES = (
    "Anna Ben Carla David Elena Frank Grace Henry Irene Jack Karen Leo Maria Nina Oscar Paula Quinn Rosa Sam Tina Uma "
    "Victor Wendy Xavier Yara Zoe"
).split()
ITEMS = (
    "apple bread butter cheese coffee cookie cream egg flour grape honey juice lemon mango milk noodle olive onion "
    "orange pasta peach pepper pizza potato rice salad salmon sugar tea tomato"
).split()
CITIES = (
    "Berlin Boston Cairo Delhi Dublin Geneva Lagos Lima London Madrid Milan Moscow Oslo Paris Prague Rome Seoul Sydney "
    "Tokyo Vienna"
).split()
MONTHS = "January February March April May June July August September October November December".split()
DEPARTMENTS = "Sales Finance Legal Support Design Research Marketing Operations".split()
SIGNS = (
    "OPEN CLOSED SALE EXIT TAXI BUS STOP CAFE HOTEL BANK PARK MUSEUM LIBRARY MARKET BAKERY STATION GARDEN THEATER "
    "PHARMACY POLICE"
).split()
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (214, 48, 49),
    "blue": (41, 98, 255),
    "green": (0, 150, 80),
    "orange": (240, 130, 20),
    "purple": (130, 60, 180),
    "black": (30, 30, 30),
    "yellow": (240, 200, 30),
    "pink": (240, 120, 170),
}
SHAPES = ("circle", "square", "triangle", "star", "diamond", "ring")
