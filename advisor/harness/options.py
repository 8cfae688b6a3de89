"""Reading the options that the parent left in the run folder."""

from __future__ import annotations

import dataclasses
import json
import os

from .layout import Options


def read_options(path: str) -> Options:
    """Decode ``options.json``; unknown fields (of a newer parent) are ignored."""
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    known = {field.name for field in dataclasses.fields(Options)}
    return Options(**{key: value for key, value in data.items() if key in known})


def home(options: Options) -> tuple[str, ...]:
    """The folders of the script's own project."""
    return (options.cwd, "" if options.module else os.path.dirname(os.path.abspath(options.script)))
