"""SVG and HTML elements as text, with every attribute escaped."""

from html import escape

__all__ = ["element", "escape", "path"]

VOID = ("input", "img", "br", "hr", "meta", "link")


def element(name: str, *children: str, **attributes: object) -> str:
    """Return an element around children that are already markup; attributes are escaped, or left out if None.

    >>> element("text", escape("a < b"), x=1.50, class_="axis", data_name='"quoted"')
    '<text x="1.5" class="axis" data-name="&quot;quoted&quot;">a &lt; b</text>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>" if name in VOID else f"<{name}{written}>{''.join(children)}</{name}>"


def path(points: list[tuple[float, float]], close: bool = False) -> str:
    """Return the SVG path commands through the points, back to the first if `close`.

    >>> path([(0.0, 0.0), (10.0, 2.25)], close=True)
    'M0 0L10 2.25Z'
    """
    return "M" + "L".join(f"{_value(x)} {_value(y)}" for x, y in points) + ("Z" if close else "")


def _value(value: object) -> str:
    # Two decimals are finer than any screen.
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
