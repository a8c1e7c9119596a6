"""An edit of the code runs again what used it, and nothing else."""

import pytest

pytestmark = pytest.mark.workflow

KERNELS = ["extract ntkdrift-residualmlp-w16-d1-s0", "extract ntkdrift-residualmlp-w8-d1-s0"]
TRAINING = ["train residualmlp-gaussian-w16-d1-s0", "train residualmlp-gaussian-w8-d1-s0"]


def test_a_change_of_the_ntk_formula_extracts_again_and_does_not_train(laboratory):
    laboratory.edit(
        "statistics/contractions.py",
        "return total.mul_(first.scale * second.scale)",
        "return total.mul_(2 * first.scale * second.scale)",
    )
    assert laboratory.planned() == sorted([*KERNELS, "sweep ntkdrift", "report", "archive"])


def test_a_comment_a_docstring_or_the_layout_changes_nothing(laboratory):
    laboratory.edit(
        "statistics/contractions.py",
        "return total.mul_(first.scale * second.scale)",
        "# The scales of the parameterisation.\n    return total.mul_(\n"
        "        first.scale * second.scale,\n    )",
    )
    laboratory.edit(
        "statistics/contractions.py", '"""(a aᵀ)∘(δ δᵀ): a dense layer."""', '"""A dense layer."""'
    )
    laboratory.edit("training.py", '"""Take one optimiser step;', '"""Take a step of training;')
    assert laboratory.planned() == []


def test_a_change_of_the_optimiser_step_trains_again_and_measures_what_was_trained(laboratory):
    laboratory.edit(
        "training.py", 'group["lr"] = rate * group["factor"]', 'group["lr"] = rate * 0.5'
    )
    assert laboratory.planned() == sorted(
        [*TRAINING, *KERNELS, "sweep ntkdrift", "report", "archive"]
    )


def test_a_change_of_a_figure_builds_the_report_only(laboratory):
    laboratory.edit(
        "experiments/ntk_drift.py", '"relative drift of the NTK after', '"drift of the NTK after'
    )
    assert laboratory.planned() == ["report"]


def test_a_change_of_the_page_builds_the_report_only(laboratory):
    template = laboratory.folder / "src/widthlab/report/templates/page.html.j2"
    template.write_text(template.read_text() + "<!-- changed -->\n")
    assert laboratory.planned() == ["report"]


def test_a_change_of_a_claim_collects_again_without_measuring(laboratory):
    laboratory.edit("experiments/ntk_drift.py", "return -1.0, (-0.5, 0.0)", "return -2.0, (-1.0,)")
    assert laboratory.planned() == ["archive", "report", "sweep ntkdrift"]
