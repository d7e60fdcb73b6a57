"""Tests of the operators: one conformance suite for all of them, and what is special to each."""
