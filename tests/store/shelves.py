"""Results that are quick to make: a few bytes each, published as any other."""

import os
import time

from widthlab.costs import Cost
from widthlab.plan import Work
from widthlab.store.manifest import MANIFEST
from widthlab.store.publish import Outcome, folder, publish

DAY = 86400.0


def work(stage, name, *inputs):
    """Return a piece of work with an address like any other."""
    address = f"{name}-0123456789ab"
    return Work(stage, address, {"name": name}, {}, "c0de", tuple(inputs), Cost())


DATA = work("data", "digits")
TRAIN = work("train", "mlp-w8", DATA)
CELL = work("extract", "drift-w8", DATA, TRAIN)
SWEEP = work("sweep", "drift", CELL)
CHAIN = (DATA, TRAIN, CELL, SWEEP)


def make(results, *works, days=0.0, files=3):
    """Publish results whose files are some days old."""
    for each in works:

        def write(path, each=each):
            if each.stage == "data":
                path.write_text(each.address * 10)
            else:
                path.mkdir()
                for number in range(files):
                    (path / f"part-{number}").write_text(f"{each.address} {number}" * (number + 1))
            return Outcome()

        publish(results, each, write, lambda line: None)
        age(folder(results, each), days)


def age(path, days):
    """Make a file or all of a folder some days old."""
    moment = time.time() - days * DAY
    for each in (path, *path.rglob("*")):
        os.utime(each, (moment, moment))


def forget(results, each):
    """Delete a result's manifest, as a killed process would have left it without."""
    (folder(results, each) / MANIFEST).unlink()


def tree(path):
    """Return all files of a folder with their bytes."""
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def weight(path):
    """Return the bytes of all files in a folder."""
    return sum(p.lstat().st_size for p in path.rglob("*") if not p.is_dir())
