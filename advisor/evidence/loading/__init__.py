"""How batches are made, what of a sample is always the same, and how the steps feel it."""
