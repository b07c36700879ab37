"""The wording of the problem families: how stories start, what happens in them and what the quantities are called.

In the sentences `{n}` is a term, `{k}` and `{m}` are the factors of a product (`{k}` alone a multiplier or divisor);
the other names are filled from the lists below.
"""

from __future__ import annotations

from dataclasses import dataclass

NAMES = (
    "Ada",
    "Ben",
    "Clara",
    "David",
    "Emma",
    "Felix",
    "Greta",
    "Hugo",
    "Iris",
    "Jonas",
    "Kira",
    "Leon",
    "Mia",
    "Nora",
    "Oscar",
    "Paula",
    "Ravi",
    "Sara",
    "Tom",
    "Vera",
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
SOLIDS = (
    "oak",
    "tower",
    "bridge",
    "temple",
    "castle",
    "chapel",
    "mill",
    "harbour",
    "well",
    "statue",
    "library",
    "palace",
)


@dataclass(frozen=True)
class Event:
    """A sentence that changes the running quantity; `side` names the product of a grouped event."""

    sentence: str
    what: str
    side: str = ""


@dataclass(frozen=True)
class Family:
    """The wording of one kind of story. Events are keyed by what they do to the running quantity."""

    name: str
    unit: str
    goods: tuple[str, ...]
    starts: dict[str, tuple[Event, ...]]
    events: dict[str, tuple[Event, ...]]
    halves: bool = False


FAMILIES = {
    family.name: family
    for family in (
        Family(
            "shopping",
            "dollars",
            (
                "pens",
                "books",
                "lamps",
                "shirts",
                "plates",
                "chairs",
                "cups",
                "rugs",
                "games",
                "mugs",
                "scarves",
                "plants",
            ),
            {
                "product": (
                    Event("{name} buys {k} {goods} at {m} dollars each.", "the cost of the {goods}"),
                    Event("{name} orders {k} {goods} for {m} dollars each.", "the cost of the {goods}"),
                ),
            },
            {
                "gain": (
                    Event("Shipping costs {n} dollars.", "the bill with shipping"),
                    Event("The tax is {n} dollars.", "the bill with tax"),
                    Event("A warranty costs {n} dollars.", "the bill with the warranty"),
                ),
                "lose": (
                    Event("A coupon takes {n} dollars off.", "the bill after the coupon"),
                    Event("A gift card pays {n} dollars.", "the bill after the gift card"),
                    Event("The shop gives a discount of {n} dollars.", "the bill after the discount"),
                ),
                "gain_groups": (
                    Event(
                        "{name} also buys {k} {more} at {m} dollars each.",
                        "the bill with the {more}",
                        "the cost of the {more}",
                    ),
                    Event(
                        "A friend adds {k} {more} for {m} dollars each.",
                        "the bill with the {more}",
                        "the cost of the {more}",
                    ),
                ),
                "lose_groups": (
                    Event(
                        "{k} vouchers of {m} dollars each are used.",
                        "the bill after the vouchers",
                        "the value of the vouchers",
                    ),
                    Event("{k} returned {more} pay back {m} dollars each.", "the bill after the refund", "the refund"),
                ),
                "scale": (Event("The whole order is placed {k} times.", "the bill of all orders"),),
                "split": (Event("The bill is shared equally by {k} friends.", "the share of one friend"),),
            },
            halves=True,
        ),
        Family(
            "travel",
            "km",
            ("bus", "train", "car", "truck", "van", "tram"),
            {
                "product": (
                    Event("A {goods} drives {k} hours at {m} km an hour.", "the first distance"),
                    Event("A {goods} makes {k} rounds of {m} km each.", "the length of the rounds"),
                ),
            },
            {
                "gain": (
                    Event("A detour adds {n} km.", "the way with the detour"),
                    Event("After lunch it goes {n} km more.", "the way after lunch"),
                    Event("A ferry carries it {n} km further.", "the way with the ferry"),
                ),
                "lose": (
                    Event("A shortcut saves {n} km.", "the way with the shortcut"),
                    Event("It turns and comes back {n} km.", "the distance from the start"),
                    Event("A tunnel makes the way {n} km shorter.", "the way with the tunnel"),
                ),
                "gain_groups": (
                    Event(
                        "Then it drives {k} hours at {m} km an hour.", "the way after that drive", "the second distance"
                    ),
                    Event(
                        "On {k} evenings it goes {m} km more.",
                        "the way with the evenings",
                        "the distance in the evenings",
                    ),
                ),
                "lose_groups": (
                    Event("{k} new bridges save {m} km each.", "the way over the bridges", "the saving by the bridges"),
                ),
                "scale": (Event("The driver makes this trip {k} times.", "the length of all trips"),),
                "split": (Event("The way is divided into {k} equal stages.", "the length of one stage"),),
            },
            halves=True,
        ),
        Family(
            "production",
            "{goods}",
            ("parts", "toys", "bottles", "screws", "candles", "baskets"),
            {
                "product": (
                    Event("A factory has {k} machines that make {m} {goods} each.", "the output of the machines"),
                    Event("A workshop works {k} days and makes {m} {goods} a day.", "the output of the workshop"),
                ),
                "given": (Event("A factory starts with {n} {goods}.", ""),),
            },
            {
                "gain": (
                    Event("A second line adds {n} {goods}.", "the output with the second line"),
                    Event("The night shift makes {n} {goods} more.", "the output with the night shift"),
                ),
                "lose": (
                    Event("A test removes {n} bad {goods}.", "the number of good {goods}"),
                    Event("A customer takes {n} {goods}.", "the number of {goods} kept"),
                    Event("A fire destroys {n} {goods}.", "the number of {goods} after the fire"),
                ),
                "gain_groups": (
                    Event(
                        "{k} helpers make {m} {goods} each.", "the output with the helpers", "the output of the helpers"
                    ),
                    Event(
                        "{k} robots build {m} {goods} each.", "the output with the robots", "the output of the robots"
                    ),
                ),
                "lose_groups": (
                    Event(
                        "{k} crates of {m} {goods} are sent back.",
                        "the number after the return",
                        "the number sent back",
                    ),
                ),
                "scale": (Event("The plant repeats this for {k} weeks.", "the output of all weeks"),),
                "split": (Event("The {goods} are loaded equally on {k} trucks.", "the load of one truck"),),
            },
        ),
        Family(
            "stock",
            "{goods}",
            ("crates", "barrels", "sacks", "boxes", "tins", "jars"),
            {
                "given": (
                    Event("A warehouse holds {n} {goods}.", ""),
                    Event("A cellar stores {n} {goods}.", ""),
                ),
                "product": (Event("A warehouse has {k} shelves with {m} {goods} each.", "the stock at the start"),),
            },
            {
                "gain": (
                    Event("On {day} {n} {goods} arrive.", "the stock after {day}"),
                    Event("On {day} a ship brings {n} {goods}.", "the stock after {day}"),
                ),
                "lose": (
                    Event("On {day} {n} {goods} are sold.", "the stock after {day}"),
                    Event("On {day} {n} {goods} are taken out.", "the stock after {day}"),
                ),
                "gain_groups": (
                    Event(
                        "On {day} {k} trucks bring {m} {goods} each.", "the stock after {day}", "the delivery on {day}"
                    ),
                ),
                "lose_groups": (
                    Event("On {day} {k} shops take {m} {goods} each.", "the stock after {day}", "the sale on {day}"),
                ),
                "scale": (Event("By {day} the stock grows to {k} times as much.", "the stock after {day}"),),
                "split": (Event("On {day} the stock is shared equally by {k} stores.", "the share of one store"),),
            },
        ),
        Family(
            "ages",
            "years",
            ("the",),
            {"given": (Event("The {old} is {n} years old.", ""),)},
            {
                "gain": (Event("The {new} is {n} years older than the {old}.", "the age of the {new}"),),
                "lose": (Event("The {new} is {n} years younger than the {old}.", "the age of the {new}"),),
                "scale": (Event("The {new} is {k} times as old as the {old}.", "the age of the {new}"),),
                "split": (Event("The {old} is {k} times as old as the {new}.", "the age of the {new}"),),
                "gain_groups": (
                    Event(
                        "The {new} is {k} spans of {m} years older than the {old}.",
                        "the age of the {new}",
                        "the length of the spans",
                    ),
                ),
                "lose_groups": (
                    Event(
                        "The {new} is {k} spans of {m} years younger than the {old}.",
                        "the age of the {new}",
                        "the length of the spans",
                    ),
                ),
            },
        ),
        Family(
            "geometry",
            "meters",
            ("field", "garden", "park", "yard", "meadow"),
            {
                "perimeter": (
                    Event(
                        "A {goods} is {a} meters long and {b} meters wide, with a fence around it.",
                        "the fence of the {goods}",
                    ),
                ),
                "product": (
                    Event("A {goods} has a fence of {k} panels of {m} meters each.", "the fence of the {goods}"),
                ),
            },
            {
                "gain": (
                    Event("A path needs {n} meters of fence more.", "the fence with the path"),
                    Event("A pond needs {n} meters of fence more.", "the fence with the pond"),
                ),
                "lose": (
                    Event("A gate saves {n} meters of fence.", "the fence without the gate"),
                    Event("A wall replaces {n} meters of fence.", "the fence without the wall"),
                ),
                "gain_groups": (
                    Event(
                        "{k} pens need {m} meters of fence each.", "the fence with the pens", "the fence of the pens"
                    ),
                    Event(
                        "{k} flower beds need {m} meters of fence each.",
                        "the fence with the beds",
                        "the fence of the beds",
                    ),
                ),
                "lose_groups": (
                    Event(
                        "{k} hedges replace {m} meters of fence each.",
                        "the fence without the hedges",
                        "the length of the hedges",
                    ),
                ),
                "scale": (Event("There are {k} such places.", "the fence of all places"),),
                "split": (Event("The fence is built in {k} equal parts.", "the length of one part"),),
            },
        ),
        Family(
            "recipe",
            "grams",
            ("flour", "sugar", "butter", "rice", "oats"),
            {
                "ratio": (Event("A recipe for {k} people needs {n} grams of {goods}.", "the amount for one person"),),
                "product": (
                    Event("A cook needs {m} grams of {goods} for each of {k} guests.", "the amount for the guests"),
                ),
            },
            {
                "gain": (
                    Event("The crust needs {n} grams more.", "the amount with the crust"),
                    Event("The cook adds {n} grams to be safe.", "the amount with the extra"),
                ),
                "lose": (
                    Event("There are {n} grams in the bowl already.", "the amount without the bowl"),
                    Event("The cook leaves out {n} grams.", "the amount after leaving some out"),
                ),
                "gain_groups": (
                    Event(
                        "{k} small cakes need {m} grams each on top.",
                        "the amount with the cakes",
                        "the amount for the cakes",
                    ),
                    Event(
                        "{k} pies need {m} grams each on top.", "the amount with the pies", "the amount for the pies"
                    ),
                ),
                "lose_groups": (
                    Event(
                        "{k} open bags of {m} grams each are used up first.",
                        "the amount after the bags",
                        "the amount in the bags",
                    ),
                ),
                "scale": (Event("All of it is made {k} times.", "the amount for all rounds"),),
                "split": (Event("The dough is cut into {k} equal loaves.", "the weight of one loaf"),),
            },
        ),
        Family(
            "orchard",
            "plants",
            ("apple", "pear", "plum", "cherry"),
            {
                "product": (
                    Event("An orchard has {k} lines with {m} {goods} trees in a line.", "the number at the start"),
                ),
                "given": (Event("An orchard counts {n} {goods} trees.", ""),),
            },
            {
                "gain": (
                    Event("In spring {n} young trees are planted.", "the number after spring"),
                    Event("A neighbour gives {n} trees.", "the number with the gift"),
                ),
                "lose": (
                    Event("A storm fells {n} trees.", "the number after the storm"),
                    Event("In a dry summer {n} trees wither.", "the number after the summer"),
                ),
                "gain_groups": (
                    Event(
                        "Along {k} new paths {m} trees are set on each.",
                        "the number with the paths",
                        "the number on the paths",
                    ),
                ),
                "lose_groups": (
                    Event("From {k} lines {m} trees each are dug out.", "the number left", "the number taken out"),
                ),
                "scale": (Event("A village plants {k} such orchards.", "the number of all places"),),
                "split": (Event("The trees fall to {k} heirs in equal parts.", "the share of one part"),),
            },
        ),
    )
}

HELD_OUT = "orchard"
TRAINED = tuple(name for name in FAMILIES if name != HELD_OUT)
