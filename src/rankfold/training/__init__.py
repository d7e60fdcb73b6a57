"""Training: recipes, data, gradients or EM, evaluation, checkpoints, and the loop that joins them."""
