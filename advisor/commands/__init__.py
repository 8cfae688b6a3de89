"""The commands, a file each: they parse and check what was typed, and call the rooms that do the work.

What is heavy is imported when a command runs: `advisor --help` has to answer at once.
"""
