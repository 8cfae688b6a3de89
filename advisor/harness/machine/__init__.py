"""The machine and the process: what they are, how fast, and what else runs there. Nothing of the script's own."""
