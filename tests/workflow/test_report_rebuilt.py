"""The page is rebuilt from results alone, byte by byte, and Snakemake's own report works."""

import re
import shutil
import subprocess

import pytest
from laboratory import BIN, ROOT, jobs_of

pytestmark = pytest.mark.workflow

FILES = ("index.html", "claims.json")
KEYS = {
    "id",
    "experiment",
    "statement",
    "source",
    "predicted",
    "measured",
    "low",
    "high",
    "verdict",
    "reason",
}


def contents(laboratory):
    return [(laboratory.report / name).read_bytes() for name in FILES]


def test_a_removed_report_is_rebuilt_without_computing_to_the_same_bytes(finished, laboratory):
    shutil.rmtree(laboratory.folder / "reports")
    assert jobs_of(laboratory.finish()) == ["report"]
    assert contents(laboratory) == contents(finished)


def test_the_command_rebuilds_the_same_bytes_wherever_the_study_lies(finished, laboratory):
    shutil.rmtree(laboratory.folder / "reports")
    code, output = laboratory.run("widthlab", "report", str(laboratory.folder / "config.yaml"))
    assert code == 0, output
    assert output.strip() == "reports/tiny/index.html"
    assert contents(laboratory) == contents(finished)
    assert laboratory.planned() == []


def test_claims_for_programs_have_the_documented_keys(finished):
    assert finished.claims()
    assert {frozenset(claim) for claim in finished.claims()} == {frozenset(KEYS)}
    assert {claim["experiment"] for claim in finished.claims()} == {"variance", "ntk_drift"}
    code, output = finished.run("widthlab", "claims", "--json")
    assert code == 0
    assert output.encode() == (finished.report / "claims.json").read_bytes()


def test_the_page_loads_nothing(finished):
    page = (finished.report / "index.html").read_text()
    loading = (
        r"""(?:\b(?:src|srcset|href|xlink:href|data|action|poster)\s*=\s*["']?|url\(\s*["']?)"""
    )
    for target in re.findall(loading + r"""([^"'\s)>]*)""", page):
        assert target.startswith(("#", "data:")), target
    assert "@import" not in page
    assert not re.search(r"<(?:iframe|object|embed|base)\b", page)


def test_snakemakes_own_report_has_both_files_with_their_captions(laboratory):
    laboratory.finish("--report", "reports/snakemake.html")
    page = (laboratory.folder / "reports/snakemake.html").read_text()
    for words in ("every claim beside what was measured", "as a list of objects", "Study"):
        assert words in page


@pytest.mark.parametrize(
    "command", [("snakemake", "--lint"), ("snakefmt", "--check", "Snakefile", "workflow")]
)
def test_the_workflow_is_in_good_form(finished, command):
    code, output = finished.run(*command)
    assert code == 0, output


def test_the_profile_is_found_through_its_link(finished):
    """Beside the Snakefile, as Snakemake looks for it; the profile itself lies with the rest."""
    assert "profiles/default for setting default" in finished.finish("--dry-run")
    listed = subprocess.run(
        ["git", "ls-files", "--stage", "profiles"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert not listed or listed.startswith("120000")
    assert (BIN / "widthlab").exists()
