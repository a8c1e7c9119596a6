"""widthlab: a laboratory for finite-width effects in deep residual networks.

`widthlab.open("config.yaml")` reads the sweeps of a study; `widthlab.empirical_ntk(model, x)` and
the other functions of `widthlab.statistics` measure any network; `widthlab.certify(model, points,
loss, train_loader, test_loader)` says which insertion points help on unseen data. Names are
imported when they are first used, so that `import widthlab` stays light.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["WidthlabError", "certify", "empirical_ntk", "open"]

_HOMES = {
    "WidthlabError": "widthlab.errors",
    "certify": "widthlab.certification.measuring",
    "empirical_ntk": "widthlab.statistics.ntk",
    "open": "widthlab.reading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'widthlab' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
