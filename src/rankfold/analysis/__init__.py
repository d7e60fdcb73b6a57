"""Baselines of a trained model, scores of its trees and segments, and the meaning of its states."""
