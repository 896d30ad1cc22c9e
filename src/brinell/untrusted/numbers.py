"""Parse numbers, fractions and shares of bounded size."""

import math
import re

# Longer texts are no numbers that a person writes. The exponent has at most three digits: 1e999999999 as a fraction
# has a billion digits.
LONGEST = 64
PATTERN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?(?:/[0-9]+)?")


def parse_number(text: str) -> float:
    """Return the number or fraction in a text, such as "0.031" or "8/255", correctly rounded; spaces are ignored.

    Raise a ValueError for any other text, for a number beyond the range of floats, and for texts that are too long.

    >>> parse_number("8 / 255") == 8 / 255, parse_number("-.5e1")
    (True, -5.0)
    >>> parse_number("1e999999999")
    Traceback (most recent call last):
    ValueError: '1e999999999' is not a number
    """
    short = text.replace(" ", "") if len(text) <= LONGEST else ""
    numerator, slash, denominator = short.partition("/")
    if not PATTERN.fullmatch(short) or (slash and not numerator.lstrip("+-").isdigit()):
        raise ValueError(f"{text[:LONGEST]!r} is not a number")
    if slash and not int(denominator):
        raise ValueError(f"{text!r} divides by zero")
    # Python divides integers with one rounding, as a fraction would.
    value = int(numerator) / int(denominator) if slash else float(short)
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is too large")
    return value


def parse_share(text: str) -> float:
    """Return a share from 0 to 1, written as a fraction, a number or per cent; a number above 1 is per cent.

    Raise a ValueError for any other text.

    >>> [parse_share(text) for text in ("1/8", "0.125", "12.5%", "12.5 %", "12.5")]
    [0.125, 0.125, 0.125, 0.125, 0.125]
    >>> parse_share("1"), parse_share("1%"), parse_share("100")
    (1.0, 0.01, 1.0)
    """
    number = parse_number(text.strip().removesuffix("%"))
    share = number / 100 if text.strip().endswith("%") or number > 1 else number
    if not 0 <= share <= 1:
        raise ValueError(f"{text[:LONGEST]!r} is not a share from 0 to 1")
    return share
