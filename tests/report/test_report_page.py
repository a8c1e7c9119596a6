"""The page: self-contained, well-formed, safe, and the same bytes from the same values."""

from __future__ import annotations

import base64
import io
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import demo_report
import numpy as np
import pandas as pd
import pytest

from widthlab.claims import Claim
from widthlab.report import plots
from widthlab.report.figures import Figure, canvas
from widthlab.report.page import CellRow, Provenance, Section, render
from widthlab.report.tables import SHOWN_ROWS, NumberTable

VOID = {"meta", "link", "br", "hr", "img", "input"}
PROVENANCE = Provenance("s", "d", None, False, command="snakemake")


class Page(HTMLParser):
    """Checks that tags nest, and gathers what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append((self.open[-1] if self.open else "", data.strip()))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, tag: str) -> list[str]:
        return [words for name, words in self.words if name == tag]


@pytest.fixture(scope="module")
def html() -> str:
    return demo_report.demo()


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_another_process_makes_the_same_bytes(html: str, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    environment = {**os.environ, "PYTHONHASHSEED": "4242", "LC_ALL": "C", "TZ": "Asia/Tokyo"}
    subprocess.run([sys.executable, demo_report.__file__, out], check=True, env=environment)
    assert out.read_text(encoding="utf-8") == html
    assert len(html) > 50_000


def test_the_order_of_rows_does_not_matter() -> None:
    rows = demo_report.rows(60)
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(60)]
    assert render("t", [], rows, PROVENANCE) == render("t", [], shuffled, PROVENANCE)


def test_nothing_is_loaded(html: str, page: Page) -> None:
    for tag, attributes in page.tags:
        assert tag not in {"script", "iframe", "object", "embed", "base", "img"}
        for name in ("src", "srcset", "href", "action", "poster", "data"):
            value = attributes.get(name, "#")
            assert value.startswith(("#", "data:")), (tag, name, value)
        assert not any(name.startswith("on") for name in attributes)
    for target in re.findall(r"url\(([^)]*)\)", html):
        assert target.startswith("#")
    assert "@import" not in html
    # names of XML namespaces are all that looks like an address
    assert set(re.findall(r"https?://[\w./-]+", html)) == {"http://www.w3.org/2000/svg"}


def test_identifiers_are_unique_and_links_lead_somewhere(page: Page) -> None:
    identifiers = [a["id"] for _, a in page.tags if "id" in a]
    assert [name for name, count in Counter(identifiers).items() if count > 1] == []
    local = {a["href"][1:] for _, a in page.tags if a.get("href", "").startswith("#")}
    assert local <= set(identifiers)
    for _, attributes in page.tags:
        for key in ("aria-labelledby", "aria-describedby"):
            if key in attributes:
                assert attributes[key] in identifiers


def test_structure_for_assistive_technology(page: Page) -> None:
    assert page.all("html")[0]["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all("scope" in attributes for attributes in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    for svg in page.all("svg"):
        assert svg.get("role") == "img" or svg.get("aria-hidden") == "true"
    described = set(page.text("desc"))
    assert any("falls as one over the width" in text for text in described)
    assert len(page.all("figure")) == len(described) == 4


def test_variables_are_defined_for_light_and_dark(html: str) -> None:
    used = set(re.findall(r"var\(--([\w-]+)", html)) - {"sans", "mono", "least"}
    light, dark = re.findall(r":root \{ (--paper[^}]*)\}", html)
    assert used <= set(re.findall(r"--([\w-]+):", light))
    assert used <= set(re.findall(r"--([\w-]+):", dark))
    assert {"ink", "c0", "r0"} <= used


def test_the_summary_counts_claims_and_lists_holes(html: str) -> None:
    summary = html[html.index('class="summary"') : html.index("<nav")]
    words = " ".join(re.sub(r"<[^>]+>", " ", summary).split())
    assert "Of 3 claims, 1 holds, 1 fails and 1 is undecided." in words
    assert "31 of 34 results are there, 1 of them diverged." in words
    assert "2 failed, 1 missing:" in words
    assert "variance mlp-digits-w16-s2 (missing)" in words


def test_each_claim_has_its_row_with_every_part(html: str) -> None:
    table = html[html.index('<table class="claims"') :]
    row = table[table.index('id="claim-variance-spread"') :].split("</tr>")[0]
    for part in (
        "The variance of log q grows by 5/N a layer",
        "Hanin &amp; Nica 2019, arXiv:1812.05994",
        "0.3906",
        "the prediction lies inside",
        "</span> holds</span>",
        'class="strip"',
    ):
        assert part in row, part
    group = table[table.index('id="claims-variance"') :].split("</tr>")[0]
    assert 'href="#experiment-variance"' in group
    assert re.search(r"\d+ holds?", group)
    assert re.search(r"0\.\d+ \[0\.\d+,&nbsp;0\.\d+\]", row)
    undecided = table[table.index('id="claim-kernel-exponent"') :].split("</tr>")[0]
    assert "<span>–</span>" in undecided


def test_results_that_need_attention_come_first(page: Page) -> None:
    order = ["failed", "missing", "diverged", "done"]
    status = [a["class"].split()[1] for a in page.all("span") if "status" in a.get("class", "")]
    rows = status[4:]
    assert rows == sorted(rows, key=order.index)
    assert Counter(rows) == {"failed": 2, "missing": 1, "diverged": 1, "done": 30}


def test_labels_are_sorted_as_numbers() -> None:
    rows = [
        CellRow("variance", f"w{width}", f"w{width}-00", "done", "", 1.0, "cpu", "cell")
        for width in (128, 16, 8, 1024)
    ]
    html = render("t", [], rows, PROVENANCE)
    assert re.findall(r"<code>w(\d+)-00", html) == ["8", "16", "128", "1024"]


def test_the_csv_is_the_table_to_the_last_digit(page: Page) -> None:
    figures, _ = demo_report.variance_figures()
    links = {a["download"]: a["href"] for a in page.all("a") if "download" in a}
    assert len(links) == 4
    for figure in figures:
        head, _, body = links[f"{figure.id}.csv"].partition(",")
        assert head == "data:text/csv;charset=utf-8;base64"
        read = pd.read_csv(io.BytesIO(base64.b64decode(body)))
        pd.testing.assert_frame_equal(read, figure.table.reset_index(drop=True), check_exact=True)


def test_a_long_table_is_cut_on_the_page_but_not_in_the_csv() -> None:
    data = pd.DataFrame({"i": range(SHOWN_ROWS + 5), "x": np.nan, "name": "<b>"})
    table = NumberTable.of(data)
    assert len(table.rows) == SHOWN_ROWS
    assert table.total == SHOWN_ROWS + 5
    assert table.rows[3] == ["3", "–", "&lt;b&gt;"]
    assert table.numeric == [True, True, False]
    text = base64.b64decode(table.csv.partition(",")[2]).decode()
    assert text.count("\n") == SHOWN_ROWS + 6


def evil_figure(text: str) -> Figure:
    data = pd.DataFrame({"x": [1.0, 2.0], text: [1.0, 2.0], "who": [text, text]})
    with canvas() as page:
        plots.series(page.axes[0], data, x="x", y=text, hue="who", kind="category")
        page.legend(text)
    return page.finish("evil", text, text, text, data)


def test_names_from_outside_are_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&<img src=x onerror=y>"
    claim = Claim(
        id=evil,
        experiment=evil,
        statement=evil,
        source=evil,
        predicted=1.0,
        measured=None,
        low=None,
        high=None,
        verdict="undecided",
        reason=evil,
    )
    section = Section(evil, evil, evil, evil, [claim], [evil_figure(evil)], evil)
    row = CellRow(evil, evil, evil, "failed", evil, 1.0, evil, "cell")
    provenance = Provenance(
        evil, evil, evil, True, {evil: evil}, [evil], 1.0, evil, evil, f"{evil}</code></pre>"
    )
    html = render(evil, [section], [row], provenance)
    page = Page(html)
    assert page.all("script") == page.all("img") == []
    assert "<script" not in html
    assert page.text("h1") == [evil]
    test_identifiers_are_unique_and_links_lead_somewhere(page)
    test_nothing_is_loaded(html, page)


def test_five_thousand_results_stay_under_five_megabytes() -> None:
    rows = demo_report.rows(5000)
    html = render("t", [], rows, PROVENANCE)
    assert len(html.encode()) < 5e6
    page = Page(html)
    assert len(page.all("code")) == 5000 + 3
    assert len(page.all("details")) == 4
    assert all("open" not in a for a in page.all("details"))


def test_a_study_without_results_still_has_a_page() -> None:
    section = Section("variance", "Variance", "q?", "m", note="no results yet")
    html = render("empty", [section], [], PROVENANCE)
    page = Page(html)
    assert "No claim could be tested yet." in html
    assert "0 of 0 results are there." in " ".join(html.split())
    assert "no results yet" in html
    assert page.all("figure") == []
    assert "not in a git repository" in html


def test_two_figures_or_claims_with_one_name_are_refused() -> None:
    figure = evil_figure("y")
    twice = [Section(name, "t", "q", "m", figures=[figure]) for name in ("a", "b")]
    with pytest.raises(ValueError, match="figure identifiers must be unique, but several are evil"):
        render("t", twice, [], PROVENANCE)
    claim = demo_report.claims(demo_report.variance_table())[0]
    section = Section("variance", "t", "q", "m", claims=[claim, claim.model_copy()])
    with pytest.raises(ValueError, match="claim identifiers must be unique"):
        render("t", [section], [], PROVENANCE)


def test_provenance_names_what_rebuilds_the_page(html: str, page: Page) -> None:
    assert any("snakemake --cores 2 reports/digits/index.html" in t for t in page.text("code"))
    for part in ("3fa9c1d27be04d5e", "6038f4d0a7c1", "with uncommitted changes", "12 min 34 s"):
        assert part in html
    assert re.search(r"numpy 2.4.6.*python 3.11.9.*torch 2.14.1", html)
