"""Two runs at once in one folder, whose names have spaces, quotes and Unicode."""

import pytest
from laboratory import Laboratory, changed

pytestmark = pytest.mark.workflow


def test_two_runs_at_once_both_end_well_in_a_folder_with_an_awkward_name(finished, tmp_path):
    study = changed(results="Ergebnisse größe 結果's", experiments__ntk_drift=None)
    laboratory = Laboratory.build(tmp_path / "Mein Ordner 'ü' 実験", study)
    runs = [laboratory.start("snakemake", "--cores", "1") for _ in range(2)]
    codes = [run.wait(300) for run in runs]
    assert codes == [0, 0], (laboratory.folder / "output.txt").read_text()
    expected = {name: digest for name, digest in finished.digests().items() if name in names()}
    assert laboratory.digests() == expected
    assert laboratory.claims() == [c for c in finished.claims() if c["experiment"] == "variance"]
    assert laboratory.planned() == []

    # The line in a log can be run by hand, its quoting included.
    (log,) = laboratory.results.glob("logs/extract/*-w8-*.log")
    line = next(line for line in log.read_text().splitlines() if line.startswith("widthlab "))
    laboratory.remove("extract variance-mlp-w8-d2")
    code, output = laboratory.run("bash", "-c", line)
    assert code == 0, output
    assert laboratory.digests() == expected


def names():
    return (
        "data gaussian",
        "extract variance-mlp-w8-d2",
        "extract variance-mlp-w16-d2",
        "sweep variance",
    )
