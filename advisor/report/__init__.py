"""Reports: every one a rendering of the same findings document; none computes anything of its own."""
