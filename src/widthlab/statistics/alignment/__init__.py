"""Effective alignment dimension: does a direction from M samples help on K others?

From a network to a certificate: `gradients` streams activation gradients at insertion `points`
(pooled by `pooling`, of single samples' `losses`); `grams` keeps their inner products; `estimates`
makes a certificate of them, from unbiased `gram_moments` and their `limits`, for `budgets` of
samples, with noise `controls` by sign flips. Whether it is so is seen by `mismatch`, which counts,
and `intervention`, which steps the activation. `expansion` goes on: a block (`blocks`) is inserted,
stepped and trained, and `expansion_bounds` judge its gain.

    grams = alignment_grams(model, "blocks.*", supervised(loss), train_loader, test_loader)
    print(certificate(grams["blocks.0"], [(64, 64)]))
"""
