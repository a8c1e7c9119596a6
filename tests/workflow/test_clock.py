"""A clock that jumps during a run: the result is the undisturbed one, and nothing is left to do."""

import os
import re
import shutil
from pathlib import Path

import pytest

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)

pytestmark = [
    pytest.mark.workflow,
    pytest.mark.skipif(FAKETIME is None, reason="libfaketime is not installed (Debian: faketime)"),
]

# With monotonic clocks left alone, libfaketime 0.9.10 breaks clock_nanosleep, by which Python
# sleeps: it returns at once, or fails.
SLEEP = """
import select
import time

time.sleep = lambda seconds: select.select((), (), (), seconds) and None
"""


def test_a_clock_that_jumps_changes_nothing(finished, laboratory, tmp_path):
    """Snakemake and its jobs see the time of day jump forward by a year, then back by two."""
    laboratory.remove(
        "train residualmlp-gaussian-w8-d1-s0",
        "extract ntkdrift-residualmlp-w8-d1-s0",
        "sweep ntkdrift",
    )
    shutil.rmtree(laboratory.report)
    (tmp_path / "sitecustomize.py").write_text(SLEEP)
    clock = tmp_path / "offset"
    clock.write_text("+0")
    # Monotonic clocks do not jump, and files keep the times that the machine gave them.
    snakemake = laboratory.start_training(
        PYTHONPATH=os.pathsep.join([str(tmp_path), str(laboratory.folder / "src")]),
        LD_PRELOAD=str(FAKETIME),
        FAKETIME_TIMESTAMP_FILE=str(clock),
        FAKETIME_NO_CACHE="1",
        FAKETIME_DONT_FAKE_MONOTONIC="1",
        NO_FAKE_STAT="1",
    )
    for offset in ("+365d", "-365d"):
        clock.write_text(offset)
        laboratory.wait_for_saving(snakemake, laboratory.saved())
    assert snakemake.wait(300) == 0, laboratory.output()
    # Snakemake's own times say that the clock was set back indeed.
    (first, *_, last) = re.findall(r"^\[\w+ \w+ +\d+ [\d:]+ (\d+)\]$", laboratory.output(), re.M)
    assert int(last) in (int(first) - 1, int(first) - 2)
    assert laboratory.digests() == finished.digests()
    assert laboratory.claims() == finished.claims()
    assert not list(laboratory.results.glob("scratch/*"))
    assert laboratory.planned() == []
