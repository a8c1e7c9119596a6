"""The signed correlation of two neurons' gradients, to leading order in 1/N.

Where the sign of a single neuron can be flipped together with its weights and nothing else
changes, as with odd activations, E[g_i g_j] is zero at every width. With other activations it need
not be: the backward pass uses the weights that the forward pass has used, so the gradient by h_l
has a part along h_l, which all neurons share where they have a mean. In ReLU networks that part is
as large as chance makes it, and nothing remains.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from widthlab.theory.block_law import mlp_variance
from widthlab.theory.gaussian import activation as look_up
from widthlab.theory.gaussian import derivative_moment, expectation

Array = NDArray[np.float64]


def mlp_signed_correlation(
    q0: ArrayLike, depth: int, activation: str, c_w: float, c_b: float
) -> Array:
    """N E[g_i g_j]/E g_i² of two neurons i ≠ j to leading order, by layer of an MLP.

    Given z = W h (+ b), a row of W is (C_W/N) h z_i/K plus a part that knows nothing of z, so that
    of g = Wᵀδ, δ = s'(z) ∘ g', the covariance given h is E g² a h_i h_j/(N q) with

        a = (C_W q/K) [(⟨z² s'²⟩ + ⟨z s' s⟩² a'/q') / (K ⟨s'²⟩) − 1],

    where K = C_W q + C_b is the variance of z, q' = ⟨s²⟩_K that of the layer above, a' the same
    number there, and a = 0 in the last layer. The correlation is a ⟨s⟩²/q, the mean of h being
    ⟨s⟩ of the layer below. Zero for odd activations and for relu. At layer 0 (the input, of which
    nothing is random) the number is NaN. Derived here, tested by brute force; equal hidden widths,
    no normalisation, scalar output. Shape (depth + 1, *q0.shape). Raises as `mlp_variance`.
    """
    law = mlp_variance(q0, depth, activation, c_w, c_b)
    s, slope = look_up(activation)
    result = np.full_like(law, np.nan)
    a = np.zeros_like(law[0])
    for layer in range(depth, 0, -1):
        if layer < depth:
            k = c_w * law[layer] + c_b
            parallel = expectation(lambda z: (z * slope(z)) ** 2, k)
            shared = expectation(lambda z: z * slope(z) * s(z), k) ** 2 / law[layer + 1]
            size = k * derivative_moment(activation, k)
            a = c_w * law[layer] / k * ((parallel + shared * a) / size - 1)
        mean = expectation(s, c_w * law[layer - 1] + c_b)
        result[layer] = a * mean**2 / law[layer]
    return result
