"""Exact sums: order (`schedule`), one pass (`operands`, `executor`), fallback to wider arithmetic (`solve`), recursive
grammars (`fixed_point`); questions: `sum_product`, `counting`, `marginals`, `derivations`; `zero_gradients`."""
