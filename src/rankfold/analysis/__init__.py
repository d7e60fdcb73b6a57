"""What a trained model is compared with, and what its states mean."""
