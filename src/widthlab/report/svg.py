"""From matplotlib's SVG to one that lives inside a page.

Several figures share one HTML document and one colour scheme, so identifiers get the figure's
prefix, colours and fonts become CSS variables, and whatever could change between two runs of
the same numbers (dates, versions) is left out.
"""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET

from matplotlib.figure import Figure

from widthlab.report import style

LEAST = 0.68
"""A page may show a figure at this share of its size; below it the text could not be read."""

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "{http://www.w3.org/1999/xlink}href"
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FAMILY = re.compile(r"(?:'[^']+'|[\w-]+)(?:,\s*(?:'[^']+'|[\w-]+))*")
_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_REFERENCE = re.compile(r"#([\w.-]+)")
_GEOMETRY = ("d", "x", "y", "width", "height", "points", "transform")
_DROPPED = (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style")


def to_svg(figure: Figure, identifier: str, title: str, alt: str) -> str:
    """Draw a matplotlib figure as an inline SVG string, the same bytes for the same drawing.

    The SVG has role `img`, named by `title` and described by `alt`. All its identifiers begin
    with `identifier`; all its known colours and its font are CSS variables with the light
    value as fallback, so that the string also stands alone.
    """
    with style.themed():
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", metadata=nothing)
    root = ET.fromstring(buffer.getvalue())
    _drop(root)
    _rename(root, identifier)
    for element in root.iter():
        _restyle(element)
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    # An attribute such as matplotlib's "480pt" would win over the page's own size.
    root.attrib.update(
        width=f"{width:g}",
        height=f"{height:g}",
        role="img",
        style=_coloured(f"fill: {style.INK}; stroke-linejoin: round; stroke-linecap: butt")
        + f"; --least: {LEAST * width:.0f}px",
    )
    root.attrib["aria-labelledby"] = f"{identifier}-title"
    root.attrib["aria-describedby"] = f"{identifier}-desc"
    for position, (tag, text) in enumerate((("title", title), ("desc", alt))):
        child = ET.Element(f"{{{_SVG}}}{tag}", {"id": f"{identifier}-{tag}"})
        child.text = text
        root.insert(position, child)
    return _written(root)


def _drop(element: ET.Element) -> None:
    """Remove metadata, matplotlib's page-wide style rule, and empty definitions."""
    for child in list(element):
        _drop(child)
        empty = child.tag in (f"{{{_SVG}}}defs", f"{{{_SVG}}}g") and len(child) == 0
        if child.tag in _DROPPED or empty:
            element.remove(child)


def _rename(root: ET.Element, prefix: str) -> None:
    """Number the identifiers that something refers to under the prefix; drop the others."""
    referred: dict[str, str] = {}
    for element in root.iter():
        if _XLINK in element.attrib:
            element.attrib["href"] = element.attrib.pop(_XLINK)
        for key in ("href", "clip-path"):
            value = element.attrib.get(key, "")
            if value.startswith(("#", "url(#")):
                found = _REFERENCE.search(value)
                assert found is not None
                name = referred.setdefault(found[1], f"{prefix}-{len(referred)}")
                element.attrib[key] = f"#{name}" if key == "href" else f"url(#{name})"
    for element in root.iter():
        old = element.attrib.pop("id", None)
        if old in referred:
            element.attrib["id"] = referred[old]


def _restyle(element: ET.Element) -> None:
    attributes = element.attrib
    for key in _GEOMETRY:
        if key in attributes:
            short = _NUMBER.sub(lambda m: f"{float(m[0]):.2f}", attributes[key])
            attributes[key] = " ".join(short.split())
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if "style" in attributes:
        attributes["style"] = _coloured(_fonted(attributes["style"]))


def _coloured(css: str) -> str:
    names = {light: name for name, (light, _) in style.theme().items()}
    return _COLOUR.sub(lambda m: f"var(--{names[m[0]]}, {m[0]})" if m[0] in names else m[0], css)


def _fonted(css: str) -> str:
    if "font-family:" not in css:
        return css
    head, tail = css.split("font-family:", 1)
    rest = _FAMILY.sub("", tail.lstrip(), count=1)
    return f"{head}font-family: var(--sans, system-ui, sans-serif){rest}"


def _written(root: ET.Element) -> str:
    """Serialise with SVG as the default namespace, without touching ElementTree's registry."""
    for element in root.iter():
        element.tag = element.tag.removeprefix(f"{{{_SVG}}}")
        if element.tag != "text" and element.text and not element.text.strip():
            element.text = None
        if element.tail and not element.tail.strip():
            element.tail = None
    root.attrib = {"xmlns": _SVG, **root.attrib}
    return ET.tostring(root, encoding="unicode")
