"""Edits of datasets, loaders and batches."""
