"""``python -m advisor``, for an environment whose commands are not on the path."""

from advisor.cli import main

main()
