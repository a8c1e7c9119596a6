"""A study: its types, and parsing with errors that a person can act on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationError, create_model

from widthlab import experiments
from widthlab.errors import WidthlabError
from widthlab.specs import WHOLE, Count, Seed, Spec, Unit, nearest

if TYPE_CHECKING:

    class Experiments(Spec):
        """The experiments of a study; any may be left out."""

else:
    Experiments = create_model(
        "Experiments",
        __base__=Spec,
        __doc__="The experiments of a study; any may be left out.",
        **{
            name: (
                experiments.load(name).Section | None,
                Field(None, description=experiments.load(name).TITLE),
            )
            for name in experiments.names()
        },
    )


LANGUAGE_MODELS = ("llama", "pythia")
RUN_ONLY = {"device", "cells_per_job", "checkpoints_per_job", "resources", "archive"}
"""Keys of a study that say how it runs and not what comes out: no part of any address."""


def _no_braces(path: str) -> str:
    if set(path) & set("{}"):
        raise ValueError("must have no braces, which Snakemake reads as wildcards")
    return path


def _known_scheme(place: str) -> str:
    if "://" in place and not place.startswith("s3://"):
        raise ValueError("must be a folder or an address s3://bucket/prefix")
    return place


Folder = Annotated[str, Field(min_length=1), AfterValidator(_no_braces)]
Place = Annotated[Folder, AfterValidator(_known_scheme)]
Number = Annotated[int, Field(ge=0), WHOLE]
"""A whole number, 0 included."""


class JobResources(Spec):
    """What to ask a scheduler for, for each job of one stage, in place of the estimate."""

    memory_mb: Annotated[Count | None, Unit("MB")] = None
    """Memory of the first attempt; the second asks for twice as much, and so on."""
    minutes: Annotated[Count | None, Unit("minutes")] = None
    """Time limit of the first attempt; it grows in the same way."""
    threads: Annotated[Count | None, Unit("cores")] = None
    """Cores; 1 unless given, which is the quickest where there are many jobs."""
    gpus: Annotated[Number | None, Unit("GPUs")] = None
    """GPUs; for training and measuring 1 where the study runs on GPUs, 0 otherwise."""


class Resources(Spec):
    """Resources of jobs by stage; what is left out is estimated."""

    data: JobResources = JobResources()
    """Preparing a data set."""
    train: JobResources = JobResources()
    """Training networks."""
    extract: JobResources = JobResources()
    """Measuring cells."""
    sweep: JobResources = JobResources()
    """Collecting an experiment's cells."""


class Study(Spec):
    """One study: what to run, where results go, and on which device."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$", max_length=64)]
    """Name of the study and of its report's folder: lower-case letters, digits, - and _."""
    results: Folder = "results"
    """Folder of all results, relative to where snakemake runs, or absolute."""
    reports: Folder = "reports"
    """Folder of the reports."""
    archive: Place | None = None
    """Folder or s3:// address of the archive of all versions; <results>/archive if not given."""
    seed: Annotated[Seed, Unit("seed")] = 0
    """Seed of the whole study."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train and measure; auto takes a GPU where there is one."""
    cells_per_job: Annotated[Count | None, Unit("cells")] = None
    """Most cells that one job measures; by default as many as take about half a minute."""
    checkpoints_per_job: Annotated[Count | None, Unit("checkpoints")] = None
    """Most checkpoints that one job trains; by default as many as take about half a minute."""
    resources: Resources = Resources()
    """What jobs ask a scheduler for, where the estimates do not suit."""
    experiments: Experiments
    """The questions, each with its grid."""

    def sections(self) -> dict[str, Spec]:
        """Return the sections that the study has, by experiment."""
        found = ((name, getattr(self.experiments, name)) for name in experiments.names())
        return {name: section for name, section in found if section is not None}


def parse(config: Mapping[str, Any], source: str = "config.yaml") -> Study:
    """Return the study that a configuration describes.

    Raises WidthlabError with one line for every key that is wrong: where it is, its value, and
    what is allowed.
    """
    try:
        study = Study.model_validate(dict(config))
    except ValidationError as error:
        problems = dict.fromkeys(_explain(dict(config), e) for e in error.errors())
        raise WidthlabError("\n  ".join([f"{source} is not a valid study:", *problems])) from None
    if not study.sections():
        raise WidthlabError(
            f"{source} has no experiment: add a section under 'experiments', one of "
            f"{', '.join(experiments.names())}"
        )
    return study


def read(path: Path) -> Study:
    """Return the study in a YAML file; raises WidthlabError where there is none."""
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise WidthlabError(f"cannot read the study {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WidthlabError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise WidthlabError(f"{path} is not a study: it must be a mapping with a 'name'")
    return parse(config, str(path))


def schema() -> dict[str, Any]:
    """Return the JSON schema of a study."""
    return Study.model_json_schema()


def _explain(config: Any, error: Any) -> str:
    """Put one of pydantic's errors into a sentence: key, value, what is allowed."""
    kind, context = error["type"], error.get("ctx", {})
    path, value = _locate(config, error["loc"])
    if kind == "missing":
        return f"{'.'.join([path, error['loc'][-1]]).lstrip('.')}: is missing; add it"
    if kind == "union_tag_not_found":
        return f"{path}.name: is missing; say which one"
    if kind == "union_tag_invalid":
        tags = re.findall(r"'([^']+)'", context["expected_tags"])
        if context["tag"] in LANGUAGE_MODELS:
            return (
                f"{path}.name: {context['tag']!r} is a language model, which has outputs at every "
                f"token, and this experiment takes none; allowed: {', '.join(tags)}"
            )
        return f"{path}.name: {context['tag']!r} is not known; {nearest(context['tag'], tags)}"
    if kind == "literal_error":
        words = re.findall(r"'([^']+)'", context["expected"])
        return f"{path}: {value!r} is not known; {nearest(str(value), words)}"
    if kind == "too_short":
        return f"{path}: is empty; give at least one"
    if kind == "value_error":
        message = str(context["error"])
        if isinstance(value, Mapping):
            return f"{path}: {message}".removeprefix(": ")
    else:
        message = error["msg"][0].lower() + error["msg"][1:]
        message = re.sub(r"^(input|list|dictionary|string|value) should", "must", message)
    return f"{path}: {value!r} is not allowed: {message}"


def _locate(config: Any, loc: tuple[int | str, ...]) -> tuple[str, Any]:
    """Follow an error's location through the configuration, past the tags of unions."""
    path = ""
    value = config
    for step in loc:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
            path += f".{step}" if path else str(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
            path += f"[{step}]"
    return path, value
