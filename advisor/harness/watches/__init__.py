"""What looks at some steps before the timing window: what they compute again, for nobody, or on too much."""
