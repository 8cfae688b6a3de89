"""What a GPU did in the steps, what it waited for, and what launched it."""
