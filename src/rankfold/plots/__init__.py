"""Pictures of results; matplotlib is imported when one is drawn."""
