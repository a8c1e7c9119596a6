"""Two runs at once: in one folder with an awkward name, and in two that share their results."""

import shutil
from collections import Counter

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


def test_two_folders_that_share_their_results_make_each_once(finished, laboratory, tmp_path):
    """In batches, which both ask for at once; what is made is counted in a file."""
    store, counter = tmp_path / "shared results", tmp_path / "made.txt"
    shutil.move(laboratory.results, store)
    batches = {"checkpoints_per_job": 2, "cells_per_job": 2}
    laboratory.configure(changed(results=str(store), **batches))
    laboratory.remove(*(name for name in finished.manifests() if not name.startswith("train")))
    laboratory.remove("train residualmlp-gaussian-w8-d1-s0")
    shutil.rmtree(laboratory.report)
    begin = "    failure.begin(home)\n"
    laboratory.edit(
        "store/publish.py",
        begin,
        f"{begin}    with open({str(counter)!r}, 'a') as made:\n"
        "        made.write(f'{work.stage} {work.address}\\n')\n",
    )
    both = [laboratory, laboratory.copy(tmp_path / "colleague")]
    runs = [one.start("snakemake", "--cores", "1") for one in both]
    assert [run.wait(300) for run in runs] == [0, 0], both[0].output() + both[1].output()
    made = Counter(line.rpartition("-")[0] for line in counter.read_text().splitlines())
    expected = set(finished.manifests()) - {"train residualmlp-gaussian-w16-d1-s0"}
    assert made == dict.fromkeys(expected, 1)
    for one in both:
        assert one.digests() == finished.digests()
        assert one.claims() == finished.claims()
        assert one.planned() == []
