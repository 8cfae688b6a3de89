"""Amounts as they are typed on the command line: ``20m``, ``2%``."""

from __future__ import annotations

import re

import click

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class Duration(click.ParamType[float]):
    """Seconds, from ``90``, ``90s``, ``20m``, ``1.5h``."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip().lower())
        if match is None or match[2] not in _SECONDS or not float(match[1]):
            self.fail(f"{value} is no length of time: write 90s, 20m or 1.5h.", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


class Share(click.ParamType[float]):
    """A share between 0 and 1, from ``2%`` or ``0.02``."""

    name = "share"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, (int, float)):
            return float(value)
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(%?)", str(value).strip())
        share = float(match[1]) / (100 if match[2] else 1) if match is not None else -1.0
        if not 0 <= share < 1:
            self.fail(f"{value} is no share: write 2% or 0.02.", param, ctx)
        return share
