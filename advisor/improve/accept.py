"""Who decides which fixes are tried: the user at a terminal, or what ``--accept`` says."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from advisor.errors import AdvisorError
from advisor.rule import Safety
from advisor.rulebook import meant

MODES = ("ask", "safe", "all", "none")


class Answer(enum.Enum):
    YES = "y"
    NO = "n"
    ALL_EXACT = "a"  # this one if it is exact, and from here on every exact one without asking
    QUIT = "q"


# Puts the question to the user; a diff asked for in between is its own affair.
Ask = Callable[[], Answer]


@dataclass(frozen=True)
class Policy:
    """``mode`` is one of MODES; with ``rules`` set, those rules' fixes are tried and no others."""

    mode: str = "none"
    rules: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str, known: Iterable[str]) -> Policy:
        """From the value of ``--accept``: a mode, or names of rules with commas. Raises AdvisorError for others."""
        if text in MODES:
            return cls(text)
        names = [name.strip() for name in text.split(",") if name.strip()]
        known = list(known)
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            what = "it names no rule; `advisor rules` lists them."
            if unknown:
                what = f"there is no rule {unknown[0]}; {meant(unknown[0], known)}"
            modes = ", ".join(MODES)
            raise AdvisorError(f"--accept {text}: {what} Say {modes}, or names of rules with commas between.")
        return cls("rules", frozenset(names))

    def decide(self, rule: str, safety: Safety, ask: Ask | None) -> tuple[Answer, Policy]:
        """Whether to try a fix, and the policy from here on (it changes with the answer "a")."""
        if self.mode == "all" or rule in self.rules or (self.mode == "safe" and safety is Safety.EXACT):
            return Answer.YES, self
        if self.mode != "ask" or ask is None:
            return Answer.NO, self
        answer = ask()
        if answer is Answer.ALL_EXACT:
            later = replace(self, mode="safe")
            return (Answer.YES if safety is Safety.EXACT else Answer.NO), later
        return answer, self
