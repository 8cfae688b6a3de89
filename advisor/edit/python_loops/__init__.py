"""Edits of loops in Python: what their rounds take, write or call is put in front of them, or behind."""
