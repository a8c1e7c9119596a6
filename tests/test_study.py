"""A study is parsed into types; what is wrong with one is said in words."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from widthlab import experiments, study
from widthlab.errors import WidthlabError

ROOT = Path(__file__).parents[1]


def config(**changes):
    """A small valid study."""
    section = {"models": {"relu": {"name": "mlp"}}, "width": [16, 32], "depth": 4}
    section.update(changes)
    return {"name": "small", "experiments": {"variance": section}}


def message(broken):
    with pytest.raises(WidthlabError) as error:
        study.parse(broken)
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"width": [0]}, ["experiments.variance.width[0]", "0", "greater than or equal to 1"]),
        ({"width": []}, ["experiments.variance.width", "empty"]),
        ({"width": [16, 16]}, ["experiments.variance.width", "twice"]),
        ({"width": ["16"]}, ["experiments.variance.width[0]", "'16'", "whole number"]),
        ({"depth": True}, ["experiments.variance.depth", "True", "whole number"]),
        ({"draws": 400.5}, ["experiments.variance.draws", "400.5", "whole number"]),
        ({"dept": 3}, ["unknown key 'dept'", "did you mean 'depth'"]),
        ({"models": {}}, ["experiments.variance.models", "empty"]),
        ({"models": {"a": {"name": "mpl"}}}, ["models.a.name", "'mpl'", "did you mean 'mlp'"]),
        ({"models": {"a": {}}}, ["models.a.name", "missing"]),
        (
            {"models": {"a": {"name": "mlp", "weight-variance": 2}}},
            ["models.a", "unknown key 'weight-variance'", "did you mean 'weight_variance'"],
        ),
        (
            {"models": {"a": {"name": "mlp", "activation": "tahn"}}},
            ["models.a.activation", "'tahn'", "did you mean 'tanh'"],
        ),
        (
            {"models": {"a": {"name": "mlp", "weight_variance": -1}}},
            ["models.a.weight_variance", "-1", "greater than 0"],
        ),
        (
            {"models": {"a": {"name": "mlp", "bias": False, "bias_variance": 1}}},
            ["models.a", "bias is false"],
        ),
        ({"data": {"name": "imagefolder", "path": "/no/such"}}, ["variance.data", "/no/such"]),
    ],
)
def test_a_wrong_key_or_value_is_named(changes, words):
    text = message(config(**changes))
    assert all(word in text for word in words), text


def drift(**changes):
    section = {"models": {"a": {"name": "mlp"}}, "width": [16], **changes}
    return {"name": "small", "experiments": {"ntk_drift": section}}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"probe": 400}, "probe: 400 is too many"),
        ({"learning_rates": {"b": 1}}, "no model 'b'"),
        (
            {"models": {"a": {"name": "resnet20"}}, "data": {"name": "gaussian"}},
            "resnet20 takes images",
        ),
        ({"models": {"a": {"name": "resnet20"}}, "training": {"batch_size": 1}}, "batch_size"),
        (
            {"models": {"a": {"name": "residual_mlp", "branch": "one_layer", "hidden_ratio": 2}}},
            "two_layer",
        ),
        ({"training": {"optimiser": "adam", "momentum": 0.9}}, "momentum belongs to sgd"),
        ({"training": {"steps": 10, "warmup_steps": 10}}, "warmup_steps must be smaller"),
    ],
)
def test_what_could_only_fail_in_a_job_is_refused_before(changes, words):
    assert words in message(drift(**changes))


TEXT = {"name": "textfile"}


def aligned(**changes):
    family = {"model": {"name": "llama"}, "width": [16], "data": TEXT, **changes}
    section = {"families": {"a": family}}
    return {"name": "small", "experiments": {"alignment": section}}


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (aligned(width=[16, 20]), "width 20 does not divide into 4 heads of an even size"),
        (aligned(data={"name": "digits"}), "llama takes text, but data is digits; choose data"),
        (aligned(data={"name": "gaussian"}), "llama takes text, but data is gaussian"),
        (
            aligned(model={"name": "mlp"}),
            "mlp does not take text (llama and",
        ),
        (aligned(model={"name": "resnet20"}), "resnet20 does not take text"),
        (aligned(training={"loss": "mse"}), "the loss of llama is cross_entropy; leave mse out"),
        (aligned(model={"name": "pythia"}), "pythia takes tokens of its own tokenizer, but data"),
        (
            aligned(model={"name": "pythia"}, data={**TEXT, "tokenizer": "EleutherAI/pythia-70m"}),
            "pythia has no checkpoint of width 16; there are 128, 256, 512",
        ),
        (aligned(data={**TEXT, "train_samples": 10}), "train_samples: 256 is too many"),
        (aligned(data={**TEXT, "path": "/no/such.txt"}), "/no/such.txt is not a file that can be"),
        (config(data=TEXT), "mlp does not take text (llama and pythia do); choose other data"),
        (drift(data=TEXT), "mlp does not take text (llama and pythia do); choose other data"),
        (drift(models={"a": {"name": "llama"}}), "'llama' is a language model, which has outputs"),
        (config(models={"a": {"name": "pythia"}}), "'pythia' is a language model, which has outp"),
    ],
)
def test_networks_and_data_that_do_not_fit_are_refused(broken, words):
    assert words in message(broken)


def test_more_inputs_than_samples_are_refused():
    assert "inputs: 2000 are asked for" in message(config(inputs=2000))


def test_the_conda_environment_has_the_locked_packages():
    lock = (ROOT / "envs/requirements.lock").read_text().split()
    environment = yaml.safe_load((ROOT / "envs/widthlab.yaml").read_text())
    assert environment["dependencies"][-1]["pip"] == lock
    assert {"torch==2.14.1", "torchvision==0.29.1"} <= set(lock)


def test_problems_are_reported_together():
    text = message(config(width=[0], draws=-1))
    assert "width[0]" in text
    assert "draws" in text


def test_missing_parts_are_named():
    assert "name: is missing" in message({})
    assert "has no experiment" in message({"name": "small", "experiments": {}})
    section = config()
    del section["experiments"]["variance"]["width"]
    assert "experiments.variance.width: is missing" in message(section)


@pytest.mark.parametrize("name", ["", "Big", "a b", "../up", "x;rm", "-x", "a" * 65])
def test_names_are_safe_in_paths_and_shells(name):
    assert "name" in message({**config(), "name": name})


def test_every_section_can_be_left_out():
    embedded = yaml.safe_load((ROOT / "config.yaml").read_text())
    assert set(embedded["experiments"]) == set(experiments.names())
    for name in embedded["experiments"]:
        one = {**embedded, "experiments": {name: embedded["experiments"][name]}}
        assert list(study.parse(one).sections()) == [name]


def test_widths_are_kept_in_order():
    assert study.parse(config(width=[32, 16])) == study.parse(config(width=[16, 32]))


def test_the_schema_in_the_repository_is_the_types_own():
    written = json.loads((ROOT / "workflow/schemas/study.schema.json").read_text())
    assert written == study.schema(), "run: widthlab schema > workflow/schemas/study.schema.json"


def test_shipped_studies_parse_and_fit_the_schema():
    paths = [ROOT / "config.yaml", *sorted((ROOT / "workflow/studies").glob("*.yaml"))]
    for path in paths:
        shipped = yaml.safe_load(path.read_text())
        jsonschema.validate(shipped, study.schema())


def test_every_field_is_described_and_every_number_has_bounds_and_a_unit():
    schema = study.schema()
    parts = {"Study": schema, **schema["$defs"]}
    for name, part in parts.items():
        if "Cell" in name:
            continue
        for key, field in part.get("properties", {}).items():
            where = f"{name}.{key}"
            if key == "name":
                continue
            assert field.get("description"), f"{where} has no description"
            numbers = [
                option
                for option in [field, *field.get("anyOf", []), field.get("items", {})]
                if option.get("type") in ("integer", "number")
            ]
            for option in numbers:
                assert field.get("unit"), f"{where} has no unit"
                bounds = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
                assert bounds & set(option), f"{where} has no bounds"


def test_a_study_file_is_read_safely(tmp_path):
    path = tmp_path / "study.yaml"
    with pytest.raises(WidthlabError, match="cannot read the study"):
        study.read(path)
    path.write_text("name: !!python/object/apply:os.system ['true']")
    with pytest.raises(WidthlabError, match="is not YAML"):
        study.read(path)
    path.write_text("- a\n- b\n")
    with pytest.raises(WidthlabError, match="must be a mapping"):
        study.read(path)
    path.write_text(yaml.safe_dump(config()))
    assert study.read(path).name == "small"
