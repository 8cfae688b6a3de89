"""What a few rules share, or what one of them would be too long with: gains, findings and edits of one family."""
