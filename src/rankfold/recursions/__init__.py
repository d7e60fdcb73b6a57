"""From potentials to log Z: pure functions, tensors and operators in, tensors out."""
