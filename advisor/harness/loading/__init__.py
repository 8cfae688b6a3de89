"""The script's data loaders: their settings, how long steps wait for them, and what making a batch consists of."""
