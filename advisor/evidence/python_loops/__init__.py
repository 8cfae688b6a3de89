"""Loops in Python inside a step, and whether their rounds could be done at once."""
