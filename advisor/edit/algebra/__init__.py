"""Edits of what a model computes: the same result by fewer or faster operators."""
