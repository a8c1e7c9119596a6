"""The alignment experiment judges gradients of known laws as they are, and measures real ones."""

from types import SimpleNamespace

import numpy as np
import pytest
from gradient_families import measured_of, section_of

from widthlab.claims import from_json
from widthlab.experiments import alignment
from widthlab.experiments.alignment.claims import claims
from widthlab.experiments.shared.base import Measured
from widthlab.experiments.shared.networks import last_snapshot, side_by_side
from widthlab.report.figures import Figure
from widthlab.specs import MLP, Network


def linear(width):
    """d_∥ = N m², d₂ = N m⁴, with m = 0.8: the signal's share is constant, and so is Σ/N."""
    return np.full(width, 0.8), 1.0


def shrinking(width):
    """d₂ = 16/N: a signal in one direction, noise in all."""
    return np.append(2.0, np.zeros(width - 1)), 1.0


def noise(width):
    return np.zeros(width), 1.0


def judged(law, section=None, **options):
    budgets = {"step_samples": [2, 8], "held_out_samples": [2, 8]}
    section = section_of(alignment, **budgets, **(section or {}))
    dataset = alignment.sweep(section, measured_of(section, law, **options))
    return dataset, {claim.id: claim for claim in from_json(dataset.attrs["claims"])}


def verdicts(found):
    return {name.removeprefix("alignment.mlp."): claim.verdict for name, claim in found.items()}


def test_linear_growth_is_seen_with_its_conditions():
    _, found = judged(linear)
    assert verdicts(found) == {
        "width": "holds",
        "linear": "holds",
        "width_start": "holds",
        "bounds": "holds",
        "mismatch_width": "holds",
        "mismatch_m": "holds",
        "mismatch_k": "holds",
        "control": "holds",
        "noise": "holds",
    }
    assert found["alignment.mlp.linear"].measured == pytest.approx(1, abs=0.15)


def test_a_dimension_that_falls_fails_the_claim_and_its_conditions_are_named():
    _, found = judged(shrinking)
    assert found["alignment.mlp.width"].verdict == "fails"
    assert found["alignment.mlp.linear"].verdict == "undecided"
    assert (
        "the signal's share of a gradient is not constant" in found["alignment.mlp.linear"].reason
    )


def test_noise_grows_in_published_estimates_and_in_no_others():
    dataset, found = judged(noise)
    assert found["alignment.mlp.width"].verdict == "undecided"
    assert found["alignment.mlp.control"].verdict == "holds"
    assert found["alignment.mlp.noise"].verdict == "holds"
    # 4 seeds, 3 widths, 2 points, 2 snapshots at an error rate of 2.5 %: 5 of 48 by 1e-2 chance.
    assert float(dataset["has_bound"].sel(laws="different").sum()) < 5


def test_a_bound_that_is_exceeded_fails():
    section = section_of(alignment, step_samples=[2, 8], held_out_samples=[2, 8])
    dataset = side_by_side(measured_of(section, noise))
    for name in ("b_exact", "b_exact_limit", "b_align"):
        dataset[name] = dataset[name] * 0 + 0.1
    claim = next(c for c in claims(dataset) if c.id.endswith(".bounds"))
    assert claim.verdict == "fails"
    # What an upper limit still covers is no failure, and no success.
    dataset["b_exact_limit"] = dataset["b_exact_limit"] * 0 + 0.9
    claim = next(c for c in claims(dataset) if c.id.endswith(".bounds"))
    assert claim.verdict == "undecided"
    assert "within its upper limit" in claim.reason


def test_a_diverged_network_is_counted_and_has_no_end():
    dataset, found = judged(linear, lost={(16, 1)})
    assert int(dataset["diverged"].sum()) == 1
    end = last_snapshot(dataset).sel(laws="different")
    lost = dataset["diverged"].to_numpy()
    assert np.isnan(end["d_align"].to_numpy()[lost]).all()
    assert "only 3 of 4 seeds are finite" in found["alignment.mlp.width"].reason
    assert "11 of 12 networks are finite to the end" in alignment.figures(dataset)[0].caption


@pytest.mark.parametrize("mixed", [False, True])
def test_networks_of_one_snapshot_have_an_end_and_no_beginning(mixed):
    """As pretrained ones have, or any with `snapshots: last`."""
    cells = measured_of(section_of(alignment, step_samples=[2, 8], held_out_samples=[2, 8]), linear)
    single = [Measured("single", one.cell, one.statistics.isel(snapshot=[1])) for one in cells[:6]]
    section = section_of(alignment, step_samples=[2, 8], held_out_samples=[2, 8])
    dataset = alignment.sweep(section, [*cells[:6], *single] if mixed else single)
    found = {claim.id: claim for claim in from_json(dataset.attrs["claims"])}
    assert "alignment.single.width_start" not in found
    assert ("alignment.mlp.width_start" in found) == mixed
    own = dataset.isel(network=dataset["family"].to_numpy() == "single")
    end = last_snapshot(own).sel(laws="different")
    np.testing.assert_array_equal(end["step"], 3)
    assert end["signal"].notnull().all()
    assert np.isfinite(found["alignment.single.mismatch_k"].measured)
    assert len(alignment.figures(dataset)) == 5


def test_a_width_without_a_dimension_decides_nothing():
    """Zeros have no logarithm: a law of the other widths is no law of all."""
    _, found = judged(lambda width: linear(width) if width < 32 else noise(width))
    assert found["alignment.mlp.width"].verdict == "undecided"
    assert found["alignment.mlp.linear"].verdict == "undecided"


def test_what_diverged_says_nothing_of_mismatches():
    lost = {(16, seed) for seed in range(4)} | {(32, seed) for seed in range(4)}
    _, found = judged(linear, lost=lost)
    assert found["alignment.mlp.mismatch_width"].verdict == "undecided"
    assert found["alignment.mlp.width"].verdict == "undecided"
    assert found["alignment.mlp.width_start"].verdict == "holds"


def test_families_of_different_widths_and_depths_stand_side_by_side():
    section = section_of(alignment, step_samples=[2, 8], held_out_samples=[2, 8])
    cells = measured_of(section, linear)[:6]
    shallow = [
        type(one)("shallow", one.cell, one.statistics.isel(point=[0], snapshot=[1]))
        for one in cells[:3]
    ]
    dataset = side_by_side([*cells, *shallow])
    own = dataset.isel(network=dataset["family"].to_numpy() == "shallow")
    assert own["point"].to_numpy().tolist() == [["h0", ""]] * 3
    assert np.isnan(own["signal"].isel(layer=1)).all()
    assert np.isnan(own["step"].isel(snapshot=1)).all()
    end = last_snapshot(own)
    np.testing.assert_array_equal(end["step"], 3)
    np.testing.assert_array_equal(
        end["signal"].isel(layer=0).to_numpy(),
        last_snapshot(dataset)["signal"].to_numpy()[:3, 0],
    )
    made = alignment.figures(dataset.assign_attrs(experiment="alignment"))
    assert all(isinstance(figure, Figure) for figure in made)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"step_samples": [65]},
            "step_samples: 65 is too many, two blocks of them need 130",
        ),
        ({"test_samples": 65}, "test_samples: 65 is too many, families.mlp.data has 64"),
        ({"family": {"model": {"name": "resnet20"}}}, "resnet20 takes images"),
        ({"families": {}}, "families"),
    ],
)
def test_what_could_only_fail_in_its_jobs_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        section_of(alignment, **changes)


def test_of_a_pretrained_network_there_is_one():
    from widthlab.experiments.shared.families import Family

    fields = {
        "model": {"name": "pythia"},
        "width": [128, 512],
        "data": {"name": "textfile", "tokenizer": "EleutherAI/pythia-70m"},
    }
    assert Family(**fields).seeds == 1
    with pytest.raises(ValueError, match="one pretrained network of a width"):
        Family(**fields, seeds=3)
    # What is stored is read again; what would be ignored is not accepted.
    again = Family(**fields).model_dump(mode="json")
    assert Family.model_validate(again) == Family(**fields)
    for name, value in (("depth", 6), ("training", {"steps": 10})):
        with pytest.raises(ValueError, match=f"{name}: pretrained networks are measured as they"):
            Family(**fields, **{name: value})


def one_network_each(growth):
    """Cells of one seed, where d_align grows as N^growth."""

    def law(width):
        return np.full(width, 0.8 * (width / 16) ** ((growth - 1) / 4)), 1.0

    return judged(law, section={"family": {"seeds": 1, "width": [8, 16, 32, 64]}})[1]


def test_of_single_networks_the_samples_make_the_interval():
    claim = one_network_each(1.0)["alignment.mlp.width"]
    assert claim.verdict == "holds"
    assert "interval is that of its samples" in claim.reason
    assert claim.low < 1 < claim.high
    assert one_network_each(-1.0)["alignment.mlp.width"].verdict == "fails"


def test_two_experiments_ask_for_the_same_checkpoints():
    from widthlab.experiments import intervention

    first, second = (
        {request.checkpoints for request in module.cells(section_of(module), 0)}
        for module in (alignment, intervention)
    )
    assert first == second
    assert len(first) == 12


def test_samples_are_drawn_at_random_and_never_twice():
    import torch

    from widthlab.experiments.shared.measured_gradients import chosen_samples

    x = torch.arange(100.0)[:, None]
    data = SimpleNamespace(
        train=lambda device: (x, x[:, 0]),
        test=lambda device: (-x, x[:, 0]),
        input_shape=(1,),
        outputs=2,
    )
    network = Network(architecture=MLP(), width=4, depth=1)
    cell = SimpleNamespace(network=network, train_samples=60, test_samples=40)

    def drawn(seed):
        seeds = np.random.SeedSequence(seed)
        inputs = SimpleNamespace(data=data, device="cpu", seeds=seeds)
        chosen = chosen_samples(cell, inputs)
        return [torch.cat([b[1] for b in part]).tolist() for part in (chosen.train, chosen.test)]

    train, test = drawn(0)
    assert len(set(train)) == 60
    assert len(set(test)) == 40
    assert train != sorted(train)
    assert drawn(0) == [train, test] != drawn(1)
