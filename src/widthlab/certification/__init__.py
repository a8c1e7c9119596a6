"""The certificate of a network of one's own: what `widthlab.certify` returns, and how.

`measuring` has `certify` itself, `arguments` and `overlap` what it refuses before, and `losses`
what it makes of a loss and of a batch; `result` is what comes back, with its table, its sentence
and its `dataset`. `sources` are models, checkpoints and data as the shell names them. (No module is
called `certify`, for importing it would put it in the place of the function `widthlab.certify`.)
"""
