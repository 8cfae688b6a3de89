"""The backward pass: what goes through it, how long, and which part of it nobody needs."""
