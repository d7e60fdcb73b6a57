"""Questions asked of potentials: posteriors, best paths, samples, entropies, predictions."""
