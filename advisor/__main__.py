"""``python -m advisor``, for an environment whose commands are not on the path."""

from advisor.cli import main

if __name__ == "__main__":  # processes that decode traces import it again, under another name
    main()
