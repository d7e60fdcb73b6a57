"""Tests of the kernels, on poisoned memory."""
