"""Edits of what autograd records, keeps and computes."""
