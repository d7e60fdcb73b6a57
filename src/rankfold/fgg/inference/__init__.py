"""Exact sums: order (`schedule`), one pass (`operands`, `executor`), fallback to wider arithmetic (`solve`), questions
(`sum_product`, `marginals`, `derivations`), recursion (`fixed_point`), derivatives at zeros (`zero_gradients`)."""
