"""What goes wrong is said in words, and leaves the rest and the report standing."""

import shutil

import pytest
from laboratory import changed

pytestmark = pytest.mark.workflow

CELLS = ("extract ntkdrift-residualmlp-w8-d1-s0", "extract ntkdrift-residualmlp-w16-d1-s0")


def test_a_failed_cell_leaves_the_other_experiment_and_the_report_standing(finished, laboratory):
    """The code of a measurement breaks for one width; then it is put right."""
    laboratory.remove("sweep ntkdrift", "extract variance-mlp-w8-d2", "sweep variance")
    place, whole = (
        "experiments/shared/random_draws.py",
        "        return ensembles.sample("
        "cell.network, x, cell.draws, inputs.seeds, measure=measure)\n",
    )
    reason = "this cell is out of luck"
    broken = f"        if cell.width == 8:\n            raise WidthlabError('{reason}')\n{whole}"
    laboratory.edit(place, whole, broken)
    code, output = laboratory.snakemake()
    assert code != 0
    assert "Traceback" not in output
    page = (laboratory.report / "index.html").read_text()
    assert reason in page
    assert "1 of 2 cells are missing" in page
    drift = [c for c in finished.claims() if c["experiment"] == "ntk_drift"]
    assert [c for c in laboratory.claims() if c["experiment"] == "ntk_drift"] == drift
    assert (
        laboratory.manifests()["sweep ntkdrift"]["digest"] == finished.digests()["sweep ntkdrift"]
    )
    _, listed = laboratory.run("widthlab", "ls", "--missing")
    assert listed.count(f"WidthlabError: {reason}") == 1
    assert [line.split()[0] for line in listed.splitlines()] == ["failed", "missing"]

    laboratory.edit(place, broken, whole)
    expected = ["extract variance-mlp-w8-d2", "report", "sweep variance"]
    assert laboratory.planned() == expected
    laboratory.finish()
    assert laboratory.claims() == finished.claims()


def test_a_cell_that_always_fails_leaves_its_batch_and_the_report_standing(finished, laboratory):
    """It fails again and again; the cells that share its job are measured once."""
    laboratory.configure(changed(cells_per_job=2))
    laboratory.remove(*CELLS, "sweep ntkdrift")
    shutil.rmtree(laboratory.report)
    reason = "this cell is always out of luck"
    place, whole = "stages.py", "    source, *checkpoints = work.inputs\n"
    fails = f"raise ArithmeticError('{reason}')"
    broken = f"{whole}    if checkpoints and cell.width == 8:\n        {fails}\n"
    laboratory.edit(place, whole, broken)
    made = None
    for _ in range(2):
        code, output = laboratory.snakemake()
        assert code != 0
        assert reason in output
        page = (laboratory.report / "index.html").read_text()
        assert "1 of 2 cells are missing" in page
        assert reason in page
        assert {c["experiment"] for c in laboratory.claims()} == {"ntk_drift", "variance"}
        (log,) = laboratory.results.glob("logs/extract/ntkdrift-*-and-1-more-*.log")
        # A failure of the code has its place in the code in the log.
        assert "Traceback" in log.read_text()
        neighbour = laboratory.manifests()[CELLS[1]]
        assert made in (None, neighbour)
        made = neighbour
    laboratory.edit(place, broken, whole)
    laboratory.finish()
    assert laboratory.manifests()[CELLS[1]] == made
    assert laboratory.digests() == finished.digests()
    assert laboratory.claims() == finished.claims()


def test_a_wrong_configuration_stops_before_any_job_with_all_that_is_wrong(laboratory):
    shutil.rmtree(laboratory.report)
    wrong = changed(experiments__variance__width=[0, 16], experiments__ntk_drift__probe="many")
    wrong["experiments"]["ntk_drift"]["training"]["learning-rate"] = 0.1
    wrong["results"] = "results/{seed}"
    laboratory.configure(wrong)
    code, output = laboratory.snakemake()
    assert code == 1
    assert "Traceback" not in output
    message = output[output.index("Error: ") :]
    width, key, probe = (
        next(line for line in message.splitlines() if word in line)
        for word in ("variance.width", "learning-rate", "ntk_drift.probe")
    )
    assert "experiments.variance.width[0]: 0 is not allowed" in width
    assert "greater than or equal to 1" in width
    assert "experiments.ntk_drift.training" in key
    assert "did you mean 'learning_rate'?" in key
    assert "'many'" in probe
    assert "whole number" in probe
    assert "results: 'results/{seed}' is not allowed: must have no braces" in message
    assert "Job" not in output
    assert not laboratory.report.exists()


def test_a_diverging_training_is_an_outcome_and_decides_no_claim(laboratory):
    laboratory.configure(
        changed(
            experiments__ntk_drift__models={"relu": {"name": "mlp", "parameterisation": "ntk"}},
            experiments__ntk_drift__width=[8],
            experiments__ntk_drift__training__learning_rate=1e12,
            experiments__ntk_drift__training__steps=20,
        )
    )
    laboratory.finish()
    code, listed = laboratory.run("widthlab", "ls")
    assert code == 0
    diverged = [line.split()[:2] for line in listed.splitlines() if line.startswith("diverged")]
    assert diverged == [["diverged", "train"], ["diverged", "extract"]]
    page = (laboratory.report / "index.html").read_text()
    assert "diverged" in page
    assert "0 of 1 runs are finite" in page
    (claim,) = [c for c in laboratory.claims() if c["experiment"] == "ntk_drift"]
    assert claim["verdict"] == "undecided"
    assert claim["measured"] is None
    assert laboratory.planned() == []
