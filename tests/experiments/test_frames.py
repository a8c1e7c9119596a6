"""Tables with holes, and figures of one panel for each model."""

import numpy as np
import pandas as pd
import pytest

from widthlab.experiments import variance
from widthlab.experiments.shared.frames import LayerTable, by_model, with_ends
from widthlab.report import plots


def section():
    models = {label: {"name": "mlp"} for label in ("b", "a")}
    return variance.Section(models=models, width=[8, 16], depth=2, draws=8)


def test_what_is_not_put_in_stays_a_hole():
    table = LayerTable(section(), {"q": "signal variance"})
    table.put("b", 16, {"q": np.array([1.0, 2.0, 3.0])})
    table.count("b", 16, 8)
    dataset = table.dataset(experiment="variance")
    assert dataset["q"].sel(model="b", width=16).to_numpy().tolist() == [1, 2, 3]
    assert int(np.isnan(dataset["q"]).sum()) == 9
    assert dataset["draws"].to_numpy().tolist() == [[0, 0], [0, 8]]
    assert dataset["q"].attrs == {"units": "1", "description": "signal variance"}
    assert dataset.attrs == {"experiment": "variance"}


def test_ends_are_two_standard_errors_away():
    data = with_ends(pd.DataFrame({"q": [1.0], "q_error": [0.25]}), ["q"])
    assert data.loc[0, ["q_low", "q_high"]].tolist() == [0.5, 1.5]


@pytest.mark.parametrize("models", [0, 1, 3, 4, 7])
def test_every_model_has_a_panel_and_no_model_is_no_error(models):
    layer = np.arange(3)
    parts = [
        pd.DataFrame({"model": f"m{i}", "layer": layer, "q": layer + i}) for i in range(models)
    ]
    empty = pd.DataFrame({"model": [], "layer": [], "q": []})
    figure = by_model(
        pd.concat(parts) if parts else empty,
        lambda axes, data: plots.series(axes, data, x="layer", y="q", label="q"),
        id="panels",
        title="Panels",
        caption="q by layer",
        alt="q by layer",
        titles={"m0": "slope 1"},
    )
    for i in range(models):
        assert f"m{i}" in figure.svg
    assert ("slope 1" in figure.svg) == (models > 0)
    assert ("no finite values" in figure.svg) == (models == 0)
