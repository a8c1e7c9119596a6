"""The archive in a bucket, tried with an S3 server on this machine."""

import shutil
import threading

import icechunk
import pytest
import xarray as xr
import zarr
from small_study import changed_sweep, small

from widthlab import WidthlabError
from widthlab.archive.repository import Archive
from widthlab.plan import Plan
from widthlab.store import datasets
from widthlab.store.publish import payload

server = pytest.importorskip("moto.server", reason="the S3 server of moto is not installed")
boto3 = pytest.importorskip("boto3", reason="boto3 makes the bucket and is not installed")


@pytest.fixture(scope="module")
def endpoint():
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(endpoint, monkeypatch, request):
    """A new bucket, and the credentials for it in the environment."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    name = f"lab{abs(hash(request.node.name))}"
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    client.create_bucket(Bucket=name)
    return name


def test_a_bucket_holds_versions_as_a_folder_does(results, bucket, endpoint):
    plan = Plan.of(small(results, archive=f"s3://{bucket}/some/where?endpoint={endpoint}"))
    with pytest.raises(WidthlabError, match="there is no archive at s3://"):
        Archive.open(plan.study)
    archive = Archive.create(plan.study)
    first = archive.commit(plan)
    assert archive.commit(plan) is None
    changed_sweep(plan, "variance", lambda sweep: sweep + 1)
    second = archive.commit(plan)
    archive.tag("v1", first)
    with pytest.raises(WidthlabError, match="the tag 'v1' is taken"):
        archive.tag("v1", second)
    found = Archive.open(plan.study)
    assert [v.id for v in found.versions("small")] == [second.id, first.id]
    assert found.find("v1").id == first.id
    (work,) = (w for w in plan.sweeps.values() if w.specification["experiment"] == "variance")
    expected = datasets.open_dataset(payload(results, work)).load()
    xr.testing.assert_identical(found.sweeps(second)["variance"].load(), expected)
    assert found.study(first) == plan.study
    assert not (results / "archive").exists()


def test_endpoint_and_region_may_come_from_the_environment(results, bucket, endpoint, monkeypatch):
    plan = Plan.of(small(results, archive=f"s3://{bucket}"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    version = Archive.create(plan.study).commit(plan)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    there = f"s3://{bucket}/?endpoint={endpoint}&region=us-east-1"
    assert Archive.open(small(results, archive=there)).versions() == [version]


def test_a_bucket_that_is_not_there_is_one_clear_sentence(results, bucket, endpoint):
    with pytest.raises(WidthlabError, match=r"cannot (read|write) the archive .*NoSuchBucket"):
        Archive.create(small(results, archive=f"s3://nowhere/a?endpoint={endpoint}"))


def test_of_commits_at_the_same_time_without_a_common_lock_one_is_kept(results, bucket, endpoint):
    """Writers on two machines share no lock; the store's conditional writes then decide."""
    plan = Plan.of(small(results, archive=f"s3://{bucket}/a?endpoint={endpoint}"))
    archive = Archive.create(plan.study)
    archive.commit(plan)
    writers = 6
    together = threading.Barrier(writers)
    outcomes = {}

    def write(number):
        session = archive.repository.writable_session("small")
        zarr.open_group(session.store, mode="a").attrs["writer"] = number
        together.wait()
        try:
            outcomes[number] = session.commit(f"writer {number}")
        except icechunk.ConflictError as error:
            outcomes[number] = error

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = [number for number, outcome in outcomes.items() if isinstance(outcome, str)]
    assert len(kept) == 1
    assert archive.repository.lookup_branch("small") == outcomes[kept[0]]
    assert len(outcomes) == writers


def test_a_commit_that_another_machine_overtakes_is_tried_again(
    results, bucket, endpoint, tmp_path, monkeypatch
):
    """Two machines: the same archive, results of their own, and so no common lock."""
    address = f"s3://{bucket}/a?endpoint={endpoint}"
    here = Plan.of(small(results, archive=address))
    there = Plan.of(small(shutil.copytree(results, tmp_path / "there"), archive=address))
    changed_sweep(there, "variance", lambda sweep: sweep + 1)
    archive = Archive.create(here.study)
    write, overtaken = datasets.open_dataset, []

    def overtake(path):
        if not overtaken:
            overtaken.append(None)
            overtaken.append(Archive.open(there.study).commit(there))
        return write(path)

    monkeypatch.setattr(datasets, "open_dataset", overtake)
    version = archive.commit(here)
    assert archive.versions() == [version, overtaken[1]]
