"""Where a value comes from: a literal, a setting, an option of the command line; and another one put there."""
