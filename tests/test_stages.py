"""Stages: what they hold while they work."""

import widthlab.data
from widthlab import specs, stages
from widthlab.plan import data_work
from widthlab.store.lease import owner


def test_a_download_is_made_by_one_process_of_all_that_share_the_store(tmp_path, monkeypatch):
    gaussian = specs.Gaussian(dimension=4, train_samples=8, test_samples=4)
    prepare, held = widthlab.data.prepare, []

    def watched(spec, downloads):
        held.append(owner(downloads / ".cifar10.lease"))
        return prepare(gaussian, downloads)

    monkeypatch.setattr(widthlab.data, "prepare", watched)
    work = data_work(specs.CIFAR(name="cifar10"))
    stages.make(tmp_path, work, "cpu", print)
    assert [holder is not None for holder in held] == [True]
    assert owner(tmp_path / "downloads" / ".cifar10.lease") is None
