# The study in one page: read it, plan it, include the rules, name the targets.
import os
import sys

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version

min_version("9.20")

# Stages run in the environment that runs Snakemake, activated or not.
os.environ.update(
    PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
)

try:
    from widthlab.errors import WidthlabError
    from widthlab.plan import Plan
    from widthlab import study as studies
    from widthlab.archive import versions
except ModuleNotFoundError as error:
    raise WorkflowError(f"{error}: run 'make env', then activate .venv") from None


# A study given with --configfile stands alone: Snakemake would merge it into this one.
if not workflow.config_settings.configfiles:

    configfile: "config.yaml"


STUDY_FILE = str(next(iter(workflow.config_settings.configfiles), "config.yaml"))

# `--config version=NAME` asks for the report of that version, from the archive.
VERSION = versions.asked(config, sys.argv)

try:
    if len(workflow.config_settings.configfiles) > 1:
        raise WidthlabError("--configfile: give one study at a time")
    PLAN = Plan.of(studies.parse(config, STUDY_FILE))
except WidthlabError as error:
    # Snakemake prints the text of a SystemExit alone, without a place in the code.
    sys.exit(f"Error: {error}")


include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/extract.smk"
include: "workflow/rules/sweep.smk"


if VERSION is None:

    include: "workflow/rules/archive.smk"
    include: "workflow/rules/report.smk"

    TARGETS = [*REPORT.values(), ARCHIVED]

else:

    include: "workflow/rules/version.smk"

    TARGETS = list(VERSION_REPORT.values())


rule all:
    default_target: True
    input:
        TARGETS,
