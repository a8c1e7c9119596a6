"""The commands of the archive, as people type them."""

import json
from pathlib import Path

import pytest
import xarray as xr
import yaml
from archived import CORRELATION, VARIANCE, changed_sweep, run
from click.testing import CliRunner

import widthlab
from widthlab import cli, reporting, study
from widthlab.archive import receipts
from widthlab.archive.repository import Archive
from widthlab.archive.versions import asked
from widthlab.plan import Plan
from widthlab.store.publish import folder


def configure(name="config.yaml", **sections):
    """Write the small study, with changes to its sections, and return it."""
    experiments = {
        "variance": {**VARIANCE, **sections.pop("variance", {})},
        "gradient_correlation": CORRELATION,
    } | sections
    config = {"name": "small", "device": "cpu", "experiments": experiments}
    Path(name).write_text(yaml.safe_dump(config))
    return study.parse(config)


@pytest.fixture(autouse=True)
def here(results, monkeypatch):
    """A folder with the small study, finished, in the state that `snakemake` leaves."""
    monkeypatch.chdir(results.parent)
    monkeypatch.setenv("COLUMNS", "200")
    return configure()


def command(*arguments):
    """Run a command to a good end and return what it wrote."""
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments):
    """Run a command that refuses, and return its one sentence."""
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.startswith("Error: ")
    return result.stderr


def archived(*arguments):
    """Archive the study of config.yaml and return the version's id."""
    return command("archive", *arguments).split()[1]


def test_archiving_says_which_version_holds_the_sweeps(here):
    first = command("archive")
    assert "is new: gradient_correlation, 2 cells; variance, 4 cells" in first
    assert command("archive") == f"version {first.split()[1]} of small holds these sweeps already\n"
    assert receipts.receipt(Plan.of(here)).exists()


def test_the_history_is_newest_first(here):
    first = archived()
    command("tag", "v1")
    changed_sweep(Plan.of(here), "variance", lambda sweep: sweep + 1)
    second = archived()
    lines = command("versions").splitlines()
    assert [line.split()[2] for line in lines[::2]] == [second, first]
    assert lines[1].strip() == "variance made again, with other numbers"
    assert [line.split()[3:5] for line in lines[::2]] == [["small", "git"], ["small", "v1,"]]
    assert command("versions", "small") == command("versions")
    assert "no version of a study 'large'; there are small" in refused("versions", "large")


def test_tags_go_to_the_newest_version_or_the_one_that_is_named(here):
    first = archived()
    changed_sweep(Plan.of(here), "variance", lambda sweep: sweep + 1)
    second = archived()
    assert command("tag", "new") == f"new is version {second} of small\n"
    assert command("tag", "old", first[:8].lower()) == f"old is version {first} of small\n"
    assert "the tag 'new' is taken" in refused("tag", "new", "old")
    assert "no version 'neu'; did you mean 'new'?" in refused("show", "neu")


def test_without_an_archive_the_sentence_says_so():
    for words in (["versions"], ["tag", "v1"], ["diff", "a", "b"], ["show", "a"], ["restore", "a"]):
        assert "there is no archive at results/archive yet" in refused(*words)
        assert "cannot read the study other.yaml" in refused(*words, "--study", "other.yaml")


def test_show_counts_what_a_version_holds(here):
    version = archived()
    shown = command("show", version)
    assert version in shown
    assert "9 done" in shown
    for sweep in Plan.of(here).sweeps:
        assert sweep in shown
    claims = [c for s in archived_sweeps(here).values() for c in json.loads(s.attrs["claims"])]
    holds = sum(claim["verdict"] == "holds" for claim in claims)
    assert f"claims        {holds} holds" in shown


def archived_sweeps(study):
    archive = Archive.open(study)
    return archive.sweeps(archive.newest(study.name))


def test_diff_says_what_changed_with_numbers(here):
    archived()
    command("tag", "v1")

    def other_verdict(sweep):
        claims = json.loads(sweep.attrs["claims"])
        (one,) = (claim for claim in claims if claim["id"] == "variance.relu.log_variance")
        one |= {"verdict": "holds", "measured": 2.5, "low": 2.01, "high": 2.99}
        return sweep.assign_attrs(claims=json.dumps(claims))

    now = configure(variance={"width": [4, 16], "inputs": 3})
    changed_sweep(run(now), "variance", other_verdict)
    archived()
    command("tag", "v2")
    said = command("diff", "v1", "v2")
    rows = [line for line in said.splitlines() if ": the " in line]
    flipped = [" → " in row for row in rows]
    assert flipped == sorted(flipped, reverse=True)
    assert any("undecided → holds" in row and "2.5 [2.01, 2.99]" in row for row in rows)
    assert "experiment variance: variance-" in said
    assert "gradient_correlation" not in said
    assert "cells: 2 added, 2 removed, 2 made anew" in said
    assert said.count("other numbers") == 2
    rows = [[w.strip() for w in line.split("│")] for line in said.splitlines()]
    assert ["", "experiments.variance.width", "[4, 8]", "[4, 16]", ""] in rows
    assert ["", "experiments.variance.inputs", "2", "3", ""] in rows
    assert "nothing differs" in command("diff", "v2", "v2")


def test_restore_writes_the_study_and_says_that_nothing_is_missing(here, results):
    archived()
    command("tag", "v1")
    run(configure(variance={"width": [16]}))
    said = command("restore", "v1")
    assert "nothing of it is missing here" in said
    restored = study.read(results.parent / "small@v1.yaml")
    assert restored == here
    assert "small@v1.yaml is there already; give another file with --out" in refused(
        "restore", "v1"
    )
    before = (results.parent / "config.yaml").read_bytes()
    assert "is there already" in refused("restore", "v1", "--out", "config.yaml")
    assert (results.parent / "config.yaml").read_bytes() == before


def test_restore_lists_what_is_missing_and_only_what_is_needed(here, results):
    plan = Plan.of(here)
    archived()
    command("tag", "v1")
    sweep = next(w for w in plan.sweeps.values() if w.specification["experiment"] == "variance")
    cell, other = sweep.inputs[:2]
    for work in (sweep, cell, *plan.data.values()):
        folder(results, work).rename(results.parent / work.address)
    said = command("restore", "v1", "--out", "old study.yaml")
    missing = [line.split()[-1] for line in said.splitlines() if line.startswith("missing")]
    assert missing == [next(iter(plan.data)), cell.address, sweep.address]
    assert other.address not in said
    assert "made anew" not in said
    assert "snakemake --cores all --configfile 'old study.yaml'" in said


def test_restore_tells_what_changed_code_would_make_anew(here, monkeypatch):
    archived()
    command("tag", "v1")
    from widthlab import plan as planning

    digest = planning.code_digest

    def edited(*roots):
        return digest(*roots) + ("" if "sweep" not in roots[0] else "edited")

    monkeypatch.setattr(planning, "code_digest", edited)
    said = command("restore", "v1")
    assert said.count("missing, made anew") == 2
    assert "2 results would be made anew, since the code or the data has changed" in said
    version = Archive.open(here).find("v1")
    assert version.git_commit is None or version.git_commit in said


def test_the_report_of_a_version_comes_from_the_archive_alone(here, results):
    page = results.parent / command("report").strip()
    claims = page.with_name("claims.json").read_bytes()
    archived()
    command("tag", "v1")
    (results / "archive").rename(results.parent / "kept")
    for part in ("cells", "sweeps", "data"):
        (results / part).rename(results.parent / part)
    (results.parent / "kept").rename(results / "archive")
    of_version = results.parent / command("report", "--version", "v1").strip()
    assert of_version == results.parent / "reports/small@v1/index.html"
    assert of_version.with_name("claims.json").read_bytes() == claims
    now, then = page.read_text(), of_version.read_text()
    assert "<h1>small · v1</h1>" in then
    now = now.replace("widthlab report config.yaml", "COMMAND")
    then = then.replace("snakemake --cores 1 report --config version=v1", "COMMAND")
    then = then.replace("small · v1", "small")
    assert then == now
    assert "no version 'v2'" in refused("report", "--version", "v2")


def test_sweeps_of_a_version_are_read_from_python(here):
    expected = {name: widthlab.open()[name].load() for name in widthlab.open()}
    version = archived()
    command("tag", "v1")
    changed_sweep(Plan.of(here), "variance", lambda sweep: sweep + 1)
    for name in ("v1", version[:9]):
        sweeps = widthlab.open("config.yaml", version=name)
        assert sorted(sweeps) == ["gradient_correlation", "variance"]
        assert len(sweeps) == 2
        assert "variance" in sweeps
        xr.testing.assert_identical(sweeps["variance"].load(), expected["variance"])
    with pytest.raises(widthlab.WidthlabError, match="the version has no experiment 'drift'"):
        sweeps["drift"]
    with pytest.raises(widthlab.WidthlabError, match="the archive holds no cells"):
        sweeps.cells("variance")
    with pytest.raises(widthlab.WidthlabError, match="has no version 'v2'"):
        widthlab.open(version="v2")


def test_a_version_with_an_experiment_of_another_time_is_refused_in_words(here, monkeypatch):
    archived()
    command("tag", "v1")
    monkeypatch.setattr(reporting.experiments, "names", lambda: ("variance",))
    words = refused("report", "--version", "v1", "--spec", json.dumps(variance_only()))
    assert "has the experiment 'gradient_correlation'" in words


def variance_only():
    return {"name": "small", "experiments": {"variance": VARIANCE}}


@pytest.mark.parametrize(
    ("config", "typed", "name"),
    [
        ({}, [], None),
        ({"version": "v1"}, ["--config", "version=v1"], "v1"),
        ({"version": 1.1}, ["--config", "seed=1", "version=1.10"], "1.10"),
        ({"version": float("inf")}, ["--config", "version=1E999"], "1E999"),
        ({"version": 3}, ["--config", "version='3'"], "3"),
        ({"version": "v1"}, ["--config=version=v1"], "v1"),
    ],
)
def test_the_version_is_what_was_typed(config, typed, name):
    assert asked(config, ["snakemake", "report", *typed]) == name
    assert config == {}


def test_a_version_in_a_study_is_an_unknown_key():
    config = {"version": 7}
    assert asked(config, ["snakemake"]) is None
    with pytest.raises(widthlab.WidthlabError, match="unknown key 'version'"):
        study.parse({**variance_only(), **config})
