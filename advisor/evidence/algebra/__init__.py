"""Operators that compute more than their results need: products, decompositions, transforms, and their shapes."""
