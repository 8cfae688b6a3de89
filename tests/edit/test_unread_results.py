"""Which statements go, of those whose results nothing reads, and which stay for what else they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.unread_results import leave_out
from advisor.harness.layout import Site

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n\n\n"


def site(path: Path, text: str, code: str) -> Site:
    """Where `code` stands in `text`, for the first time."""
    at = text.index(code)
    before = text[:at].split("\n")
    after = (text[:at] + code).split("\n")
    return Site(str(path), len(before), column=len(before[-1]), end_line=len(after), end_column=len(after[-1]))


def left(folder: Path, text: str, place: str, *calls: str) -> tuple[str, str]:
    """(the text without the statement of `place`, why not); `calls` are those that the run saw besides."""
    path = folder / "train.py"
    text = HEAD + text
    path.write_text(text)
    drafts = Drafts(Sources())
    there = site(path, text, place)
    why = leave_out(drafts, [there], [there, *(site(path, text, each) for each in calls)])
    edit = drafts.edit("") if not why else None
    return (next(iter(edit.texts.values())) if edit is not None else text).removeprefix(HEAD), why


GOES = {
    "a function of torch's": ("for x in xs:\n    d = torch.cdist(x, x)\n    go(x)\n", "torch.cdist(x, x)", ()),
    "of an alias": ("for x in xs:\n    d = F.softmax(x, -1)\n    go(x)\n", "F.softmax(x, -1)", ()),
    "methods": (
        "for x in xs:\n    d = torch.cdist(x, x).view(-1).mean()\n    go(x)\n",
        "torch.cdist(x, x)",
        ("torch.cdist(x, x).view(-1).mean()",),
    ),
    "under no_grad": (
        "for x in xs:\n    with torch.no_grad():\n        d = torch.cdist(x, x)\n    go(x)\n",
        "torch.cdist(x, x)",
        (),
    ),
    "a type is said": ("for x in xs:\n    d: object = torch.cdist(x, x)\n    go(x)\n", "torch.cdist(x, x)", ()),
    "several names": ("for x in xs:\n    (a, b), c = torch.cdist(x, x)\n    go(x)\n", "torch.cdist(x, x)", ()),
    "no name": ("for x in xs:\n    torch.cdist(x, x)\n    go(x)\n", "torch.cdist(x, x)", ()),
}


@pytest.mark.parametrize(("text", "place", "calls"), GOES.values(), ids=GOES)
def test_it_goes(text: str, place: str, calls: tuple[str, ...], tmp_path: Path) -> None:
    assert left(tmp_path, text, place, *calls) == ("for x in xs:\n    go(x)\n", "")


FUNCTION = """\
def spread(x):
    d = x[:, None] - x
    LINE
    return d.norm(dim=-1).mean()


for x in xs:
    s = spread(x)
    go(x)
"""
PURE = {
    "loop": "for i in range(3):\n        d = d + i",
    "condition": "if len(x) > 3:\n        d = d * 2",
    "torch's": "d = torch.tanh(d)",
    "assert": "assert x.dim() == 2",
}
DOES = {
    "attribute": "x.seen = d",
    "subscript": "LAST['d'] = d",
    "tuple": "d, LAST['n'] = d, 1",
    "added up": "LAST['n'] += 1",
    "list": "seen.append(1)",
    "print": "print(d.shape)",
    "seed": "torch.manual_seed(0)",
    "in place": "torch.nn.init.zeros_(weight)",
    "what the run did not see": "d = torch.tanh(d) if training else torch.relu_(d)",
    "a flag": "x.requires_grad_()",
    "saved": "torch.save(d, 'd.pt')",
    "another's": "note(x)",
    "queue": "q.get()",
    "numpy": "np.random.rand()",
    "global": "global n\n    n = 1",
    "yield": "yield d",
    "walrus": "d = (e := d)",
}


def called(folder: Path, line: str) -> str:
    """Why a call of the function with this line in it is not left out."""
    path, text = folder / "train.py", HEAD + FUNCTION.replace("LINE", line)
    path.write_text(text)
    there = site(path, text, "spread(x)\n    go(x)")
    there.end_line, there.end_column = there.line, (there.column or 0) + len("spread(x)")
    seen = ("d.norm(dim=-1)", "d.norm(dim=-1).mean()", "torch.tanh(d)")
    calls = [site(path, text, each) for each in seen if each in text]
    return leave_out(Drafts(Sources()), [there], [there, *calls])


@pytest.mark.parametrize("line", PURE.values(), ids=PURE)
def test_a_function_that_only_computes_is_not_called(line: str, tmp_path: Path) -> None:
    assert called(tmp_path, line) == ""


@pytest.mark.parametrize("line", DOES.values(), ids=DOES)
def test_a_function_that_does_more_is_called(line: str, tmp_path: Path) -> None:
    assert "spread" in called(tmp_path, line) or "also calls" in called(tmp_path, line)


STAYS = {
    "an attribute": ("for x in xs:\n    self.d = torch.cdist(x, x)\n    go(x)\n", ()),
    "an element": ("for x in xs:\n    kept['d'] = torch.cdist(x, x)\n    go(x)\n", ()),
    "read later": ("for x in xs:\n    d = torch.cdist(x, x)\n    go(d)\n", ()),
    "read in another round": ("for x in xs:\n    go(d)\n    d = torch.cdist(x, x)\n", ()),
    "in a function": ("for x in xs:\n    d = torch.cdist(x, x)\n    go(x)\ndef last():\n    return d\n", ()),
    "added": ("for x in xs:\n    d += torch.cdist(x, x)\n    go(x)\n", ()),
    "deleted": ("for x in xs:\n    d = torch.cdist(x, x)\n    del d\n", ()),
    "another call": ("for x in xs:\n    d = torch.cdist(x, x) + note(x)\n    go(x)\n", ()),
    "a call inside": ("for x in xs:\n    d = torch.cdist(x, x)[note(x)]\n    go(x)\n", ()),
    "the next batch": ("for x in xs:\n    d = torch.cdist(x, x) @ bank.next()\n    go(x)\n", ()),
    "tried": (
        "for x in xs:\n    try:\n        d = torch.cdist(x, x)\n    except RuntimeError:\n        x = 1\n    go(x)\n",
        (),
    ),
    "a timer": ("for x in xs:\n    with Timer() as t:\n        d = torch.cdist(x, x)\n    go(t.s)\n", ()),
    "a lock": ("for x in xs:\n    with lock:\n        d = torch.cdist(x, x)\n    go(x)\n", ()),
    "all of a condition": ("for x in xs:\n    if x.any():\n        d = torch.cdist(x, x)\n    go(x)\n", ()),
    "all of a loop": ("for x in xs:\n    d = torch.cdist(x, x)\n", ()),
    "asked": ("for x in xs:\n    if torch.cdist(x, x) is not None:\n        go(x)\n", ()),
    "given back": ("def f(x):\n    return torch.cdist(x, x)\n", ()),
    "by name": ("def f(x):\n    d = torch.cdist(x, x)\n    return locals()\n", ()),
    "two of a line": ("for x in xs:\n    d = torch.cdist(x, x); go(x)\n", ()),
    "a walrus": ("for x in xs:\n    d = torch.cdist(x, (y := x))\n    go(y)\n", ()),
}


@pytest.mark.parametrize(("text", "calls"), STAYS.values(), ids=STAYS)
def test_it_stays(text: str, calls: tuple[str, ...], tmp_path: Path) -> None:
    place = "torch.cdist(x, (y := x))" if ":=" in text else "torch.cdist(x, x)"
    assert left(tmp_path, text, place, *calls)[1] != ""


def test_what_only_stands_in_a_place_seen_goes(tmp_path: Path) -> None:
    text = "for x in xs:\n    d = h @ bank.next_batch()\n    go(x)\n"
    path = tmp_path / "train.py"
    path.write_text(HEAD + text)
    whole = site(path, HEAD + text, "h @ bank.next_batch()")  # a product, that ends where the call ends
    assert "next_batch" in leave_out(Drafts(Sources()), [whole], [whole])
