"""Tests of the arithmetic."""
