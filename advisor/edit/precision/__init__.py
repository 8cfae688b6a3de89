"""Edits of the types that a model computes in."""
