"""What runs inside the script's process, on torch and the standard library alone, with relative imports only."""
