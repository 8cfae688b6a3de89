"""The machine and the process: what they are, how fast, what the run takes of them, and what else runs there."""
