"""Figures: the same bytes, no clash in one page, colours that follow the reader's scheme."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from widthlab.report import plots, style
from widthlab.report.figures import Canvas, Figure, canvas
from widthlab.report.ticks import at_values, log_label

SVG = "{http://www.w3.org/2000/svg}"


def table() -> pd.DataFrame:
    width = np.repeat([16, 64, 256], 4)
    layer = np.tile([1, 2, 3, 4], 3)
    value = layer / width
    return pd.DataFrame(
        {"width": width, "layer": layer, "q": value, "low": 0.8 * value, "high": 1.2 * value}
    )


def draw(id: str = "variance-layers", data: pd.DataFrame | None = None) -> Figure:
    data = table() if data is None else data
    with canvas(ncols=2) as page:
        plots.layers(page.axes[0], data, y="q", low="low", high="high")
        plots.loglog(page.axes[1], data, x="width", y="q", hue="layer", low="low", high="high")
        plots.theory(page.axes[1], [16, 256], [0.1, 0.1 / 16])
        plots.slope(page.axes[1], -1, (64, 0.02), "slope −1")
        page.letter("Layers", "Widths")
        page.legend("width N")
    return page.finish(id, "A <title>", "caption", 'alt "text" & more', data)


def texts(figure: Figure) -> list[str]:
    return [element.text or "" for element in ET.fromstring(figure.svg).iter(f"{SVG}text")]


def test_the_same_drawing_is_the_same_bytes() -> None:
    assert draw().svg == draw().svg


def test_a_matplotlibrc_changes_nothing_and_nothing_leaks() -> None:
    before = dict(matplotlib.rcParams)
    plain = draw().svg
    with matplotlib.rc_context({"savefig.bbox": "tight", "font.size": 30, "axes.grid": False}):
        assert draw().svg == plain
    assert dict(matplotlib.rcParams) == before
    assert plt.get_fignums() == []


def test_identifiers_begin_with_the_figure_and_references_lead_somewhere() -> None:
    svg = draw().svg
    identifiers = re.findall(r'\bid="([^"]+)"', svg)
    assert len(identifiers) == len(set(identifiers))
    assert all(name.startswith("variance-layers-") for name in identifiers)
    referred = re.findall(r'(?:href="|url\()#([^")]+)', svg)
    referred += re.findall(r'aria-\w+="([^"]+)"', svg)
    assert len(referred) > 10
    assert set(referred) == set(identifiers)


def test_svg_has_a_role_a_title_and_a_description() -> None:
    root = ET.fromstring(draw().svg)
    assert root.attrib["role"] == "img"
    title, description = root[0], root[1]
    assert (title.tag, title.text) == (f"{SVG}title", "A <title>")
    assert (description.tag, description.text) == (f"{SVG}desc", 'alt "text" & more')
    assert root.attrib["aria-labelledby"] == title.attrib["id"]
    assert root.attrib["aria-describedby"] == description.attrib["id"]


def test_every_colour_and_font_is_a_variable() -> None:
    svg = draw().svg
    used = re.findall(r"var\(--([\w-]+), (#[0-9a-f]{6})\)", svg)
    assert {"ink", "muted", "grid"} <= {name for name, _ in used}
    assert all(style.theme()[name][0] == light for name, light in used)
    rest = re.sub(r"var\(--[\w-]+, #[0-9a-f]{6}\)", "", svg)
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b(?=[;\"])", rest)
    assert not re.search(r"\b(?:black|white|rgb)\b", rest)
    assert "DejaVu" not in svg
    assert "var(--sans" in svg


def test_text_stays_text_and_says_what_is_plotted() -> None:
    said = texts(draw())
    assert {"layer", "q", "width", "width N", "16", "64", "256", "theory", "slope −1"} <= set(said)
    assert "a\u2002Layers" in said


def test_nothing_but_the_drawing_is_in_the_svg() -> None:
    svg = draw().svg
    assert "<?xml" not in svg
    assert "DOCTYPE" not in svg
    assert "<style" not in svg
    assert "metadata" not in svg
    assert "xlink" not in svg
    assert re.findall(r"https?://[^\"' ]+", svg) == ["http://www.w3.org/2000/svg"]


@pytest.mark.parametrize("id", ["", "Variance", "a b", 'x"onload', "1st", "ä"])
def test_an_unsafe_identifier_is_refused(id: str) -> None:
    with pytest.raises(ValueError, match="small letters, digits and hyphens"):
        draw(id)


def test_an_empty_text_is_refused() -> None:
    with canvas() as page:
        pass
    with pytest.raises(ValueError, match="figure q: alt is empty"):
        page.finish("q", "title", "caption", " ", table())


def drawn_lines(page: Canvas) -> list[np.ndarray]:
    return [np.asarray(line.get_ydata(), dtype=float) for line in page.axes[0].lines]


def test_lines_hold_the_finite_rows_in_order_of_x() -> None:
    data = pd.DataFrame({"x": [3, 1, 2, 4], "y": [9.0, 1.0, np.nan, 16.0]})
    with canvas() as page:
        plots.series(page.axes[0], data, x="x", y="y")
    (line,) = page.axes[0].lines
    np.testing.assert_array_equal(line.get_xdata(), [1, 3, 4])
    np.testing.assert_array_equal(line.get_ydata(), [1, 9, 16])


def test_a_logarithmic_axis_leaves_out_what_is_not_positive() -> None:
    data = pd.DataFrame({"x": [1, 2, 4], "y": [0.0, -1.0, 8.0], "low": -1.0, "high": 9.0})
    with canvas() as page:
        plots.loglog(page.axes[0], data, x="x", y="y", low="low", high="high", spread="band")
    np.testing.assert_allclose(drawn_lines(page)[0], [8.0], rtol=1e-14)
    (band,) = page.axes[0].collections
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx(0.8)


def test_a_plot_without_finite_values_says_so() -> None:
    data = table().assign(q=np.nan)
    figure = draw(data=data)
    assert texts(figure).count("no finite values") == 2


def test_bars_start_at_zero_and_carry_their_interval() -> None:
    data = pd.DataFrame({"net": ["a", "b"], "y": [2.0, 3.0], "low": [1.5, 2.0], "high": [4.0, 3.5]})
    with canvas() as page:
        plots.bars(page.axes[0], data, x="net", y="y", low="low", high="high")
    heights = [patch.get_height() for patch in page.axes[0].patches]
    assert heights == [2.0, 3.0]
    (whiskers,) = page.axes[0].collections
    segments = [segment[:, 1].tolist() for segment in whiskers.get_segments()]
    assert segments == [[1.5, 4.0], [2.0, 3.5]]


def test_the_legend_reads_row_by_row() -> None:
    data = pd.DataFrame([{"x": x, "y": x * n, "n": n} for n in range(1, 13) for x in (1, 2)])
    with canvas() as page:
        plots.series(page.axes[0], data, x="x", y="y", hue="n")
        page.legend("n")
    figure = page.finish("many", "t", "c", "a", data)
    places = {}
    for element in ET.fromstring(figure.svg).iter(f"{SVG}text"):
        if (element.text or "").isdecimal() and "anchor: start" in element.attrib["style"]:
            places[int(element.text or "0")] = (
                float(element.attrib["y"]),
                float(element.attrib["x"]),
            )
    names = [name for _, name in sorted((place, name) for name, place in places.items())]
    assert names == list(range(1, 13))
    assert len({y for y, _ in places.values()}) == 2


def test_colours_of_widths_are_ordered_and_distinct() -> None:
    widths = [256, 16, 64, 32, 128]
    colours = style.ordered_colours(widths)
    luminances = [luminance(colours[width]) for width in sorted(widths)]
    assert luminances == sorted(luminances, reverse=True)
    assert len(set(colours.values())) == 5
    dark = dict(style.ramp().values())
    nights = [luminance(dark[colours[width]]) for width in sorted(widths)]
    assert nights == sorted(nights)
    assert len(style.ordered_colours([7])) == 1


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_has_contrast_aa_and_lines_have_three_to_one(scheme: int) -> None:
    base = style.BASE
    for text in ("ink", "muted", "link", "good", "bad", "open"):
        for paper in ("paper", "raised"):
            assert contrast(base[text][scheme], base[paper][scheme]) >= 4.5, (text, paper)
    for name, pair in {**style.CATEGORIES, **style.ramp()}.items():
        assert contrast(pair[scheme], base["paper"][scheme]) >= 3, name


def test_light_colours_are_distinct_so_that_each_has_one_variable() -> None:
    lights = [light for light, _ in style.theme().values()]
    assert len(lights) == len(set(lights))


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01, "0.01"), (1, "1"), (2000, "2000"), (1e-5, "10⁻⁵"), (2e6, "2×10⁶"), (0, "")],
)
def test_labels_of_logarithmic_ticks(value: float, text: str) -> None:
    assert log_label(value) == text


def test_ticks_at_values_are_thinned_from_the_largest_down() -> None:
    with canvas() as page:
        axes = page.axes[0]
        axes.set_xscale("log")
        at_values(axes.xaxis, [1, 900, 1000, 1024, 10])
    assert list(axes.xaxis.get_major_locator()()) == [1, 10, 1024]


def test_quantiles_lie_about_the_line_of_equality() -> None:
    data = pd.DataFrame({"exact": [-1.0, 0.0, 2.0], "measured": [-1.1, 0.1, np.nan]})
    with canvas() as page:
        plots.quantiles(page.axes[0], data, x="exact", y="measured", labels=("exact", "measured"))
        (line,) = [line for line in page.axes[0].lines if line.get_label() == "equal"]
    ends = np.array([-1.1, 0.1])
    assert np.array_equal(line.get_xdata(), ends)
    assert np.array_equal(line.get_ydata(), ends)


def test_crossings_keep_the_axes_though_an_interval_has_no_end() -> None:
    with canvas() as page:
        axes = page.axes[0]
        plots.loglog(axes, table(), x="layer", y="q", hue="width")
        limits = axes.get_xlim()
        plots.crossings(axes, np.array([[2.0, 1.5, np.inf]]), 0.1, "end")
        plots.crossings(axes, np.empty((0, 3)), 0.1, "none")
        assert axes.get_xlim() == limits
        labels = axes.get_legend_handles_labels()[1]
    assert "end" in labels
    assert "none" not in labels


def test_the_legend_has_widths_in_order_though_no_panel_has_all() -> None:
    with canvas(ncols=2) as page:
        for axes, widths in zip(page.axes, ([16, 1024], [256]), strict=True):
            data = table().assign(width=lambda d, w=widths: np.resize(w, len(d)))
            plots.series(axes, data, x="layer", y="q", hue="width")
            plots.theory(axes, [1, 4], [1, 1], "law")
        page.legend("width N")
        (legend,) = page.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["16", "256", "1024", "law"]


def test_a_single_point_on_logarithmic_axes_has_room():
    data = pd.DataFrame({"x": [1 / 16], "y": [0.3], "low": [0.3], "high": [0.3]})
    with canvas() as page:
        (axes,) = page.axes
        plots.loglog(axes, data, x="x", y="y", low="low", high="high")
        plots.limits_from(axes, [0.3])
        page.finish("one-point", "One point", "One point.", "One point.", data)
        assert axes.get_xlim()[1] > 1.5 * axes.get_xlim()[0]
        assert axes.get_ylim()[1] > 1.00001 * axes.get_ylim()[0]
