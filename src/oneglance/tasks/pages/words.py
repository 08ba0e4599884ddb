"""The vocabulary that the pages draw from."""

from __future__ import annotations

from typing import Final

Words = tuple[str, ...]

FIRST: Final[Words] = tuple(
    "Anna Ben Carla David Elena Frank Grace Henry Irene Jack Karen Leo Maria Nina Oscar Paula "
    "Quinn Rosa Sam Tina Uma Victor Wendy Xavier Yara Zoe".split()
)
LAST: Final[Words] = tuple(
    "Adams Baker Chen Diaz Evans Fischer Garcia Hansen Ivanov Jones Kumar Lopez Meyer Novak Olsen "
    "Patel Quist Rossi Silva Tanaka Urban Varga Weber Young Zhang".split()
)
CITIES: Final[Words] = tuple(
    "Berlin Boston Cairo Delhi Dublin Geneva Lagos Lima London Madrid Milan Moscow Oslo Paris "
    "Prague Rome Seoul Sydney Tokyo Vienna".split()
)
ITEMS: Final[Words] = tuple(
    "apple bread butter cheese coffee cookie cream egg flour grape honey juice lemon mango milk "
    "noodle olive onion orange pasta peach pepper pizza potato rice salad salmon sugar tea tomato".split()
)
GOODS: Final[Words] = tuple(
    "camera carpet chair clock desk fan heater hammer kettle lamp ladder mirror paper phone piano "
    "printer radio sofa table tent".split()
)
ADJECTIVES: Final[Words] = tuple(
    "blue cheap clean early fresh green heavy large late light new old red round short small "
    "strong sweet warm white".split()
)
MONTHS: Final[Words] = tuple(
    "January February March April May June July August September October November December".split()
)
WEEKDAYS: Final[Words] = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())
DEPARTMENTS: Final[Words] = tuple("Sales Finance Legal Support Design Research Marketing Transport".split())
STREETS: Final[Words] = tuple("Park Lake Hill River Forest Church Mill Bridge Garden Station Market King".split())
STREET_KINDS: Final[Words] = ("Road", "Street", "Lane", "Square")
SHOPS: Final[Words] = ("Market", "Store", "Corner", "Kitchen", "Bakery", "Supply")
SIGNS: Final[Words] = tuple(
    "OPEN CLOSED SALE EXIT TAXI BUS STOP CAFE HOTEL BANK PARK MUSEUM LIBRARY MARKET BAKERY STATION "
    "GARDEN THEATER PHARMACY POLICE SCHOOL BEACH HARBOR TICKETS PARKING FLOWERS BOOKS PIZZA COFFEE "
    "FRESH FISH FRUIT DAILY TODAY NORTH SOUTH EAST WEST TRAIN FERRY".split()
)
NUMBERED_SIGNS: Final[Words] = ("ROOM", "GATE", "PLATFORM", "EXIT", "FLOOR", "TRACK", "LINE", "BUS")
GROUPS: Final[Words] = ("people", "drivers", "students", "families", "readers", "workers", "visitors", "doctors")
VERBS: Final[Words] = ("choose", "prefer", "buy", "like", "avoid", "sell")
MEASURES: Final[Words] = ("Sales", "Visitors", "Orders", "Units", "Costs", "Profit", "Calls", "Trips")
SHORT_MONTHS: Final[Words] = tuple("Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split())
SHORT_DAYS: Final[Words] = tuple("Mon Tue Wed Thu Fri Sat Sun".split())
SURVEY_TITLES: Final[Words] = (
    "City Survey",
    "Food Report",
    "Daily Habits",
    "Market Facts",
    "What We Eat",
    "Life in Numbers",
)

Rgb = tuple[int, int, int]
COLOURS: Final[dict[str, Rgb]] = {
    "red": (214, 48, 49),
    "blue": (41, 98, 235),
    "green": (0, 140, 75),
    "orange": (240, 130, 20),
    "purple": (130, 60, 180),
    "black": (30, 30, 30),
    "yellow": (240, 200, 30),
    "pink": (240, 120, 170),
}
INKS: Final[tuple[Rgb, ...]] = ((15, 15, 15), (20, 20, 80), (60, 20, 20), (10, 60, 40), (60, 60, 60))
PAPERS: Final[tuple[Rgb, ...]] = ((255, 255, 255), (252, 248, 238), (240, 244, 250), (244, 244, 244))
TINTS: Final[tuple[Rgb, ...]] = ((255, 255, 255), (235, 245, 255), (255, 246, 230), (236, 250, 236), (250, 236, 246))
