"""The rules, one file each; :mod:`advisor.diagnose` finds them by listing this package."""
