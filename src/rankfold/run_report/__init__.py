"""A run as one HTML page: learning curve, results next to baselines, what was learned, settings."""
