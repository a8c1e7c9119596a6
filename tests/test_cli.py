"""The command line: stages run by hand, the commands that people type, errors in one sentence."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from widthlab import cli, study
from widthlab.interruption import RETRY
from widthlab.plan import FOLDERS, Plan
from widthlab.store.manifest import read

DATA = {"name": "gaussian", "dimension": 6, "train_samples": 32, "test_samples": 16}
STUDY = {
    "name": "small",
    "experiments": {
        "ntk_drift": {
            "models": {"tanh": {"name": "residual_mlp", "activation": "tanh"}},
            "width": [4, 8],
            "depth": 1,
            "seeds": 2,
            "training": {"steps": 4, "snapshots": 2},
            "probe": 6,
            "data": DATA,
        }
    },
}
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small study."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "config.yaml").write_text(yaml.safe_dump(STUDY))
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # and so restored after a stage has set it


@pytest.fixture(scope="module")
def plan():
    return Plan.of(study.parse(STUDY))


def run(*arguments):
    """Run a command and return its exit code, what it wrote, and its errors."""
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def finished(folder, plan):
    """Every stage of the study, run by hand with the specification that the rules give it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for work in plan.all_work():
            code, out, err = run(work.stage, "--address", work.address, "--spec", work.json)
            assert code == 0, err
            assert (folder / "results" / FOLDERS[work.stage] / work.address).is_dir()
        code, out, err = run("report")
        assert code == 0, err
        assert out == "reports/small/index.html\n"
    return folder


def test_stages_run_by_hand_are_what_the_plan_asked_for(finished, plan):
    for work in plan.all_work():
        manifest = read(finished / "results" / FOLDERS[work.stage] / work.address)
        assert manifest.specification == work.specification
        assert manifest.inputs == [source.address for source in work.inputs]
        assert manifest.status == "finished"
    code, out, _ = run("ls", "--missing")
    assert (code, out) == (0, "")


def test_a_finished_stage_does_nothing_again(finished, plan):
    work = next(iter(plan.checkpoints.values()))
    code, out, _ = run("train", "--spec", work.json)
    assert code == 0
    assert out.splitlines()[-1] == f"{work.address} is already there"


def test_a_batch_runs_by_the_study_and_its_name(finished, plan, tmp_path):
    """Also where inputs are missing: they are made on the way."""
    study_json = plan.report.study_json
    (batch,) = plan.batches["extract"].values()
    assert len(batch.works) == 4
    log = tmp_path / "logs/extract.log"
    code, out, err = run(
        *("extract", "--batch", batch.name, "--study", study_json),
        *("--results", str(tmp_path / "elsewhere"), "--log", str(log)),
    )
    assert (code, out, err) == (0, "", "")
    assert log.read_text().startswith("widthlab")
    for work in (*batch.works, *plan.checkpoints.values(), *plan.data.values()):
        place = f"{FOLDERS[work.stage]}/{work.address}"
        made, known = read(tmp_path / "elsewhere" / place), read(finished / "results" / place)
        assert made.digest == known.digest


def test_a_batch_needs_a_study_that_has_it(plan):
    code, _, err = run("extract", "--batch", "no-such-1", "--study", plan.report.study_json)
    assert code == 1
    assert "no-such-1" in err
    assert "run snakemake again" in err
    code, _, err = run("extract", "--batch", "no-such-1")
    assert code == 1
    assert "--study" in err


def test_a_report_from_its_specification_is_the_same(finished, plan):
    page = finished / "reports/small/index.html"
    before = page.read_bytes()
    page.unlink()
    code, _, _ = run("report", "--spec", plan.report.study_json, "config.yaml")
    assert code == 0
    assert page.read_bytes() == before


def test_ls_lists_every_result(finished, plan):
    code, out, _ = run("ls")
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["done", work.stage, work.address] for work in plan.all_work()
    ]


def test_plan_counts_what_is_done(finished):
    code, out, _ = run("plan")
    assert code == 0
    for words, count in {"data sets": 1, "checkpoints": 4, "cells": 4, "sweeps": 1}.items():
        (row,) = (line.strip() for line in out.splitlines() if line.strip().startswith(words))
        assert row.removeprefix(words).split()[:3] == [str(count), str(count), "0"]


def test_plan_of_a_new_study_estimates_what_is_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(yaml.safe_dump(STUDY))
    code, out, _ = run("plan", "mine.yaml")
    assert code == 0
    assert "GB" in out
    assert list(tmp_path.iterdir()) == [tmp_path / "mine.yaml"]


def test_claims_for_people_and_for_programs(finished):
    code, out, _ = run("claims", "--json")
    assert code == 0
    assert out == (finished / "reports/small/claims.json").read_text()
    (claim,) = json.loads(out)
    code, out, _ = run("claims")
    assert code == 0
    assert claim["verdict"] in out


def test_claims_without_a_report_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(yaml.safe_dump(STUDY))
    code, _, err = run("claims")
    assert code == 1
    assert "run snakemake" in err


def test_the_schema_is_printed():
    code, out, _ = run("schema")
    assert code == 0
    assert json.loads(out) == study.schema()


@pytest.mark.parametrize("command", [None, *cli.main.commands])
def test_every_command_has_help(command):
    code, out, _ = run(*([command] if command else []), "--help")
    assert code == 0
    assert out.startswith("Usage:")
    assert len(out.split("\n\n")[1].strip()) > 10


# ── errors ──────────────────────────────────────────────────────────────────────────────────


def one_sentence(code, err):
    assert code == 1
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    return err


def test_a_wrong_address_is_one_clear_sentence(plan):
    work = next(iter(plan.data.values()))
    wrong = "gaussian-000000000000"
    code, _, err = run("data", "--address", wrong, "--spec", work.json)
    assert f"{wrong} is now {work.address}" in one_sentence(code, err)
    assert "run snakemake again" in err
    assert not Path("results/data", wrong).exists()


@pytest.mark.parametrize(
    ("stage", "spec", "words"),
    [
        ("data", "{", "--spec is not JSON"),
        ("report", "{", "--spec is not JSON"),
        ("train", "[1]", "must be a JSON object"),
        ("extract", '"text"', "must be a JSON object"),
        ("data", "{}", "lacks the key 'data'"),
        ("train", '{"data": 1}', "lacks the key 'checkpoint'"),
        ("extract", '{"experiment": "variance"}', "lacks the key 'seed'"),
        ("sweep", '{"experiment": "varience", "seed": 0}', "no experiment 'varience'"),
    ],
)
def test_a_wrong_specification_is_one_clear_sentence(stage, spec, words):
    code, _, err = run(stage, "--spec", spec)
    assert words in one_sentence(code, err)


def test_an_invalid_specification_names_what_is_wrong():
    code, _, err = run("data", "--spec", '{"data": {"name": "gaussian", "dimension": 0}}')
    assert code == 1
    assert "dimension" in err
    assert "Traceback" not in err


def test_a_missing_study_is_one_clear_sentence():
    for command in ("plan", "ls", "claims", "report"):
        code, _, err = run(command, "nothing.yaml")
        assert "cannot read the study nothing.yaml" in one_sentence(code, err)


def test_inputs_that_are_not_there_are_made_on_the_way(plan, tmp_path):
    work = next(iter(plan.cells.values()))
    code, out, _ = run("extract", "--results", str(tmp_path), "--spec", work.json)
    assert code == 0
    for needed in (*work.inputs, work):
        assert read(tmp_path / FOLDERS[needed.stage] / needed.address)
        assert needed.address in out


def test_a_gpu_asked_for_in_vain_is_one_clear_sentence(finished, plan, tmp_path, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    data, work = next(iter(plan.data.values())), next(iter(plan.checkpoints.values()))
    assert run("data", "--results", str(tmp_path), "--spec", data.json)[0] == 0
    code, _, err = run("train", "--results", str(tmp_path), "--device", "cuda", "--spec", work.json)
    assert "device is cuda, but torch finds no GPU" in one_sentence(code, err)


# ── being asked to stop ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stage_that_is_asked_to_stop_ends_at_once_with_75(plan, tmp_path, number):
    """Whatever runs at that moment: nothing below the command gets to see an exception."""
    script = (
        "import os, signal, sys; from widthlab import cli, stages\n"
        "def measure(*anything):\n"
        "    try:\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "        [None for _ in range(10**6)]\n"
        "    except BaseException:\n"
        "        os._exit(3)\n"
        "stages.MAKERS['data'] = measure; cli.main()"
    )
    (work,) = plan.data.values()
    log = tmp_path / "data.log"
    command = ["data", "--results", str(tmp_path), "--log", str(log), "--spec", work.json]
    done = subprocess.run([sys.executable, "-c", script, *command], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (RETRY, "", "")
    assert "repeat the command" in log.read_text()
    assert read(tmp_path / "data" / work.address) is None


def test_a_training_that_is_asked_to_stop_saves_exits_75_and_goes_on(finished, tmp_path):
    training = {"steps": 20_000, "snapshots": 2, "save_every": 100, "batch_size": 8}
    long = {"ntk_drift": {**STUDY["experiments"]["ntk_drift"], "width": [4], "training": training}}
    planned = Plan.of(study.parse({"name": "long", "experiments": long}))
    (data,), work = planned.data.values(), next(iter(planned.checkpoints.values()))
    assert run("data", "--results", str(tmp_path), "--spec", data.json)[0] == 0
    command = [BIN / "widthlab", "train", "--results", tmp_path, "--spec", work.json]
    scratch = tmp_path / "scratch" / work.address

    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + 300
    while not (scratch / "state.safetensors").exists():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == RETRY == 75
    assert "repeat the command to go on" in out.splitlines()[-1]
    assert not (tmp_path / "checkpoints" / work.address / "manifest.json").exists()

    stopped = out.splitlines()[-1].split("after step ")[1].split(";")[0]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("resuming"):
            assert line == f"resuming after step {stopped} of 20000\n"
            break
    else:
        raise AssertionError("training did not go on from its state")
    process.kill()
    process.communicate(timeout=300)
