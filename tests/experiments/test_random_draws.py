"""Which engine draws a network, and what a cell says of it."""

import pytest
from pydantic import ValidationError

from widthlab.errors import WidthlabError
from widthlab.experiments import variance

MODELS = {
    "plain": {"name": "mlp", "activation": "tanh"},
    "batch": {"name": "mlp", "activation": "tanh", "normalisation": "batch"},
}


def engines(**options):
    section = variance.Section(models=MODELS, width=[8], depth=2, **options)
    return {request.label: request.cell.engine for request in variance.cells(section, 0)}


def test_networks_are_drawn_without_weights_where_they_can_be():
    assert engines() == {"plain": "weightfree", "batch": "dense"}
    assert engines(engine="dense") == {"plain": "dense", "batch": "dense"}


def test_an_unknown_engine_is_refused_with_those_that_there_are():
    with pytest.raises(ValidationError, match="'weightfree' or 'dense'"):
        engines(engine="sparse")


def test_the_cost_without_weights_is_linear_in_width():
    def flops(width, engine):
        section = variance.Section(
            models={"plain": MODELS["plain"]}, width=[width], depth=50, engine=engine
        )
        (request,) = variance.cells(section, 0)
        return request.cost.flops

    assert flops(2048, "weightfree") == pytest.approx(2 * flops(1024, "weightfree"))
    assert flops(2048, "dense") > 3.5 * flops(1024, "dense")


@pytest.mark.parametrize(
    ("model", "depth", "powers"),
    [
        ({"name": "mlp", "activation": "linear", "weight_variance": 1e200}, 2, "10^400"),
        ({"name": "residual_mlp", "activation": "relu"}, 500, "10^88"),
    ],
)
def test_signals_that_grow_beyond_all_bounds_are_refused(model, depth, powers):
    section = variance.Section(models={"large": model}, width=[8], depth=depth)
    with pytest.raises(WidthlabError) as caught:
        variance.cells(section, 0)
    assert str(caught.value).startswith(f"models.large: signals grow by about {powers} in {depth}")


def test_what_grows_slowly_enough_is_drawn():
    for model in (
        {"name": "residual_mlp", "activation": "relu", "residual_scale": 0.5},
        {"name": "residual_mlp", "activation": "tanh", "weight_variance": 9.0},
        {"name": "mlp", "activation": "linear", "weight_variance": 9.0, "normalisation": "layer"},
    ):
        section = variance.Section(models={"model": model}, width=[8], depth=500)
        assert len(variance.cells(section, 0)) == 1
