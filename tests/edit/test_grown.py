"""What grows in a loop is joined once behind it, and is the same."""

from __future__ import annotations

import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.python_loops.grown import joined_once

HEAD = "import numpy as np\nimport pandas as pd\nimport torch\n\n"
HEAD += "batches = [torch.arange(4.0).view(2, 2) + i for i in range(5)]\n"
HEAD += "def table(x):\n    return pd.DataFrame(x.numpy())\n\n"


def edited(text: str) -> tuple[str, str]:
    """The text with what grows joined once, and why not."""
    drafts = Drafts(Sources({"/tmp/nowhere/train.py": text}))
    draft = drafts["/tmp/nowhere/train.py"]
    why = joined_once(draft, draft.module)
    return draft.render() if not why else text, why


@pytest.mark.parametrize(
    ("first", "part", "join"),
    [
        ("torch.empty(0, 2)", "y", "torch.cat([out, y])"),
        ("torch.ones(3, 2)", "y.detach()", "torch.cat((out, y.detach()), dim=0)"),
        ("torch.empty(2, 0)", "y", "torch.cat([out, y], 1)"),
        ("torch.empty(0)", "y[:, 0]", "torch.cat([out, y[:, 0]])"),
        ("torch.empty(0, 2, dtype=torch.int64)", "y", "torch.vstack([out, y])"),
        ("np.empty((0, 2))", "y.numpy()", "np.concatenate([out, y.numpy()])"),
        ("np.empty((0, 2))", "y.numpy()", "np.append(out, y.numpy(), axis=0)"),
        ("np.array([])", "y.numpy()", "np.append(out, y.numpy())"),
        ("pd.DataFrame(columns=[0, 1])", "table(y)", "pd.concat([out, table(y)], ignore_index=True)"),
    ],
)
@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_the_same_is_joined(first: str, part: str, join: str, rounds: int) -> None:
    text = f"{HEAD}out = {first}\nfor x in batches[:{rounds}]:\n    y = x * 2\n    out = {join}  # all\nkept = out\n"
    new, why = edited(text)
    assert not why and "    out_parts.append(" in new and f"out = {join}" not in new
    before: dict[str, object] = {}
    after: dict[str, object] = {}
    exec(text, before)
    exec(new, after)
    assert type(before["kept"]) is type(after["kept"])
    assert str(before["kept"]) == str(after["kept"])
    assert getattr(before["kept"], "dtype", None) == getattr(after["kept"], "dtype", None)


@pytest.mark.parametrize(
    ("first", "rounds"),
    [
        ("torch.empty(0)", "y = torch.zeros(2)\nfor x in batches:\n    y.copy_(x[0])\n    out = torch.cat([out, y])\n"),
        ("torch.empty(0)", "b = torch.zeros(4)\nfor x in batches:\n    b += 1\n    y = b.view(2, 2)\n"
         "    out = torch.cat([out, y[0]])\n"),
        ("torch.empty(0, 2)", "for x in batches:\n    y = x * 2\n    out = torch.cat([out, y])\n    y += 1\n"),
        ("torch.empty(0)", "for x in batches:\n    y = x * 2\n    out = torch.cat([out, y.view(4)])\n    y.zero_()\n"),
        ("torch.empty(0)", "for y in batches:\n    y = y[0]\n    out = torch.cat([out, y if y.ndim else x])\n"
         "    y += 1\n"),
        ("torch.empty(0)", "for x in batches:\n    y = x[0]\n    out = torch.cat([out, y])\n    z = y\n    z += 1\n"),
        ("torch.empty(0, 2)", "def up(y):\n    y += 1\n    return y\n\ny = torch.zeros(2, 2)\nfor x in batches:\n"
         "    out = torch.cat([out, up(y)])\n"),
        ("np.array([])", "for x in batches:\n    y = x.numpy()[0]\n    out = np.append(out, y)\n    y.fill(0)\n"),
        ("np.empty((0, 2))", "y = np.zeros(2)\nfor x in batches:\n    y += 1\n    out = np.append(out, [y], axis=0)\n"),
        ("np.array([])", "for x in batches:\n    out = np.concatenate([out, x[:, 0]])\n    x.zero_()\n"),
        ("pd.DataFrame()", "for x in batches:\n    y = table(x)\n    out = pd.concat([out, y])\n    y.loc[0] = 7\n"),
    ],
)  # fmt: skip
def test_what_is_changed_later_is_kept_as_it_was(first: str, rounds: str) -> None:
    text = f"{HEAD}out = {first}\n{rounds}"
    new, why = edited(text)
    assert not why and "_parts.append(" in new
    before: dict[str, object] = {}
    after: dict[str, object] = {}
    exec(text, before)
    exec(new, after)
    assert str(before["out"]) == str(after["out"])


def test_no_gradient_is_kept_where_none_was() -> None:
    text = f"{HEAD}w = torch.ones(2, requires_grad=True)\nout = torch.empty(0, 2)\nfor x in batches:\n    y = x * w\n"
    text += "    with torch.no_grad():\n        out = torch.cat([out, y])\n"
    new, why = edited(text)
    after: dict[str, object] = {}
    exec(new, after)
    assert not why and not after["out"].requires_grad  # type: ignore[attr-defined]


def test_functions_that_are_imported_alone() -> None:
    text = "from numpy import append, array\n\nout = array([])\nfor x in range(3):\n    out = append(out, x)\n"
    new, why = edited(text)
    after: dict[str, object] = {}
    exec(new, after)
    assert not why and "out_parts.append(" in new and after["out"].tolist() == [0, 1, 2]  # type: ignore[attr-defined]


@pytest.mark.parametrize("rounds", [0, 2])
def test_what_makes_rows_of_a_vector_leaves_it_alone_without_any(rounds: int) -> None:
    text = f"{HEAD}out = np.zeros(2)\nfor x in batches[:{rounds}]:\n    out = np.vstack([out, x])\n"
    new, why = edited(text)
    before: dict[str, object] = {}
    after: dict[str, object] = {}
    exec(text, before)
    exec(new, after)
    assert not why and str(before["out"]) == str(after["out"])


def test_it_goes_behind_the_outermost_loop_in_which_nothing_reads_it() -> None:
    text = (
        HEAD + "def run():\n    for epoch in range(2):\n        seen = torch.empty(0, 2)\n        for x in batches:\n"
    )
    text += "            for view in (x + 1, x + 2):\n                seen = torch.cat([seen, view])\n"
    text += "        print(len(seen))\n"
    new, why = edited(text)
    assert not why
    assert "        seen_parts = []\n        for x in batches:\n            for view in" in new
    assert "        seen = torch.cat([seen, *seen_parts])\n        print(len(seen))\n" in new


@pytest.mark.parametrize(
    "loop",
    [
        "for x in batches:\n    y = x * 2\n    out = torch.cat([out, y])\n    print(len(out))\n",  # read in the loop
        "for x in batches:\n    y = x * 2\n    out = torch.cat([y, out])\n",  # in front
        "for x in batches:\n    y = x * 2\n    out = torch.cat([out, y, y])\n",
        "for i, x in enumerate(batches):\n    y = x * 2\n    out = torch.cat([out, y], dim=i)\n",
        "def show():\n    print(out)\n\nfor x in batches:\n    out = torch.cat([out, x])\n    show()\n",
        "def f(out):\n    for x in batches:\n        out = torch.cat([out, x])\n        return out\n",
        "y = batches[0] * 2\nout = torch.cat([out, y])\n",  # in no loop
        "for x in batches:\n    self.out = torch.cat([self.out, x])\n",
        "for x in batches:\n    try:\n        out = torch.cat([out, x])\n    except Exception:\n        pass\n",
        "try:\n    for x in batches:\n        out = torch.cat([out, x])\nexcept KeyboardInterrupt:\n    print(out)\n",
        "for x in batches:\n    out = torch.cat([\n        out,\n        x,  # all\n    ])\n",
    ],
)
def test_what_may_be_something_else_is_left_alone(loop: str) -> None:
    text = f"{HEAD}out = torch.empty(0, 2)\n{loop}"
    assert edited(text) == (text, edited(text)[1]) and edited(text)[1]
