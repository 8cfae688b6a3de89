"""Loops over a tensor's parts take it apart once: the same results and gradients, or no change."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import torch

from advisor.edit import Drafts, Sources
from advisor.edit.python_loops.parts import take_apart
from advisor.harness.layout import Site

HEAD = "import torch\n\n\ndef f(x, w, n=6):\n"

# Each is a function of x (4, 6, 3) and w (3, 3) with gradients, the line of the part, and whether it is written.
CHANGED = {
    "a state": """
        h = torch.zeros(4, 3)
        for t in range(n):
            h = torch.tanh(h @ w + x[:, t])  # <-
        return h
    """,
    "the last dimension": """
        total = 0.0
        for k in range(3):
            total = total + x[..., k].sin() * (k + 1)  # <-
        return total
    """,
    "part of a part": """
        found = []
        for i, _ in enumerate(range(4)):
            found.append(x[i, 1:, 0].exp())  # <-
        return torch.stack(found)
    """,
    "numbers counted from": """
        h = torch.zeros(4, 3)
        for t in range(n):
            h = h * 0.5 + x[:, n - 1 - t, :] * x[:, -t - 1]  # <-
        return h
    """,
    "a while loop": """
        h, t = torch.zeros(4, 3), 0
        while t < n:
            h = torch.tanh(h + x[:, t])  # <-
            t += 1
        return h
    """,
    "a comprehension": """
        return torch.stack([x[:, t].cumsum(0) for t in range(1, n)])  # <-
    """,
    "tuples": """
        h = torch.zeros(4, 3)
        for t in range(n - 1):
            a, b = x[:, t], x[:, t + 1]  # <-
            h = h + a * b
        return h
    """,
    "a loop within, and the whole of it": """
        h = x.sum(1)
        for t in range(n):
            for scale in (0.5, 2.0):
                h = h + scale * x[:, t] @ w  # <-
        return h
    """,
    "a name that is there already": """
        x_parts = 3
        h = torch.zeros(4, 3)
        for t in range(n):
            h = h * x_parts + x[:, t]  # <-
        return h
    """,
    "in front of what is whole": """
        h = torch.zeros(4, 3)
        for t in range(n):
            h = torch.tanh(h + x[..., t, :])  # <-
        return h
    """,
    "a cell's step": """
        class Cell:
            def step(self, x, h):
                return torch.tanh(x @ w + h)

        h = torch.zeros(4, 3)
        for t in range(n):
            h = Cell().step(x[:, t], h) * torch.exp(-x[:, t])  # <-
        return h
    """,
    "written, and moved": """
        out = torch.zeros(n, 4, 3).to(x.device)
        for t in range(n):
            out[t] = x[:, t] * 2  # <-
        return out
    """,
    "written": """
        out = torch.zeros(4, n, 3)
        h = torch.zeros(4, 3)
        for t in range(n):
            h = torch.tanh(h @ w + 1)
            out[:, t] = h  # <-
        return out * x
    """,
    "written from one on": """
        out = x.new_ones(n, 4, 3)
        h = torch.zeros(4, 3)
        for t in range(1, n):
            h = torch.tanh(h @ w + 1)
            out[t] = h  # <-
        return out
    """,
    "written, and none of it": """
        out = x.new_ones(n, 4, 3)
        for t in range(n, n):
            out[t] = x[:, 0] * t  # <-
        return out + x.sum()
    """,
    "written until": """
        out = torch.zeros(4, n, 3)
        h = torch.zeros(4, 3)
        for t in range(n):
            h = torch.tanh(h @ w + 1)
            out[:, t, :] = h  # <-
            if t == 3:
                break
        return out
    """,
    "written in a loop over something": """
        out = torch.zeros(n, 4, 3)
        for t, part in enumerate(x.unbind(1)):
            out[t] = part @ w  # <-
        return out
    """,
    "some of a part": """
        h = torch.zeros(4, 2)
        for t in range(n):
            h = torch.tanh(h + x[:, t, 1:])  # <-
        return h
    """,
    "a dimension more": """
        h = torch.zeros(4, 1, 3)
        for t in range(n):
            h = torch.tanh(h + x[:, t, None])  # <-
        return h
    """,
    "one number of each row": """
        h = torch.zeros(4)
        for t in range(n):
            h = torch.tanh(h + x[:, t, 0])  # <-
        return h
    """,
    "by the numbers of two loops": """
        h = torch.zeros(4, 3)
        for t in range(2, n):
            for k in range(3):
                if t > k:
                    h = h * 0.5 + x[:, t - k]  # <-
        return h
    """,
    "now and then": """
        h = torch.zeros(4, 3)
        for t in range(n):
            h = h * 0.5 + (x[:, t] if t % 2 else h)  # <-
        return h
    """,
    "of a weight, within a recurrence": """
        h = torch.zeros(3)
        for t in range(n):
            h = torch.stack([torch.logsumexp(h + w[k], 0) for k in range(3)])  # <-
        return h
    """,
    "written until the first round": """
        out = x * 0 + torch.zeros(4, n, 3)
        kept = torch.ones(4, n, 3)
        for t in range(n):
            if t == 0:
                break
            kept[:, t] = x[:, t] * 2  # <-
        return out + kept
    """,
}
LEFT = {
    "is None for some": """
        y, h = None, torch.zeros(4, 3)
        if n > 3:
            y = x * 2
        for t in range(n):
            h = h + y[:, t]  # <-
        return h
    """,
    "becomes another one": """
        for t in range(n):
            x = x * 1.1
            h = x[:, t].sum()  # <-
        return h
    """,
    "is written to": """
        y = x * 1
        h = torch.zeros(4, 3)
        for t in range(1, n):
            y[:, t] += y[:, t - 1]
            h = h + y[:, t]  # <-
        return h
    """,
    "the part is changed in place": """
        y, found = x * 1, []
        for t in range(n):
            part = y[:, t]  # <-
            part += 1
            found.append(part)
        return torch.stack(found)
    """,
    "an in-place function": """
        y, found = x * 1, []
        for t in range(n):
            found.append(torch.nn.functional.relu(y[:, t], inplace=True))  # <-
        return torch.stack(found)
    """,
    "may be None": """
        h = torch.zeros(4, 3)
        for t in range(n):
            if w is not None:
                h = h + w[t % 3]  # <-
        return h
    """,
    "may not be there": """
        y, h = (x * 2 if n < 9 else None), torch.zeros(4, 3)
        for t in range(n):
            if n < 9:
                h = h + y[:, t]  # <-
        return h
    """,
    "may not be there, in a comprehension": """
        return torch.stack([x[:, t] for t in range(n)] if n < 9 else [x[:, 0]])  # <-
    """,
    "becomes another one in a function": """
        y = x

        def grow():
            nonlocal y
            y = y + 1

        h = torch.zeros(4, 3)
        for t in range(n):
            grow()
            h = h + y[:, t]  # <-
        return h
    """,
    "its data is another one": """
        h = torch.zeros(4, 3)
        for t in range(n):
            h = h + x[:, t]  # <-
            x.data = x.data * 1.5
        return h
    """,
    "without gradients around it": """
        h = torch.zeros(4, 3)
        with torch.no_grad():
            for t in range(n):
                with torch.enable_grad():
                    h = h + x[:, t]  # <-
        return h
    """,
    "some rows": """
        h = torch.zeros(2, 3)
        for t in range(n):
            h = h + x[:2, t]  # <-
        return h
    """,
    "always the same one": """
        h = torch.zeros(4, 3)
        for scale in (1.0, 2.0):
            h = h + x[:, -1] * scale  # <-
        return h
    """,
    "read while it is written": """
        out = torch.zeros(4, n, 3)
        for t in range(1, n):
            out[:, t] = out[:, t - 1] + x[:, t]  # <-
        return out
    """,
    "written now and then": """
        out = torch.zeros(4, n, 3)
        for t in range(n):
            if t % 2:
                out[:, t] = x[:, 0]  # <-
        return out
    """,
    "what is written changes": """
        out, h = torch.zeros(4, n, 3), x[:, 0] * 1
        for t in range(n):
            out[:, t] = h  # <-
            h += 1
        return out
    """,
    "written in another order": """
        out = torch.zeros(4, n, 3)
        for t in range(n - 1, -1, -1):
            out[:, t] = x[:, 0] * t  # <-
        return out
    """,
    "written from another number on": """
        out = torch.zeros(n + 1, 4, 3)
        for t, part in enumerate(x.unbind(1), 1):
            out[t] = part @ w  # <-
        return out
    """,
    "written by two numbers": """
        out = torch.zeros(n, n, 3)
        for t in range(n):
            for k in range(n):
                out[t, k] = x[0, k] * t  # <-
        return out
    """,
    "written where a function reads it": """
        out = torch.zeros(n, 4, 3)

        def before(t):
            return out[t - 1] + x[:, t]

        for t in range(1, n):
            out[t] = before(t)  # <-
        return out
    """,
    "written from where only a test says": """
        out = torch.zeros(n, 4, 3)
        for t in range(1 if n > 3 else 0, n):
            out[t] = x[:, t] * 2  # <-
        return out
    """,
    "written as far as there is something": """
        out, rows = torch.zeros(n, 4, 3), iter(x.unbind(1)[:3])
        try:
            for t in range(n):
                out[t] = next(rows) * 2  # <-
        except StopIteration:
            pass
        return out
    """,
    "written in a context": """
        out = torch.zeros(4, n, 3)
        for t in range(n):
            with torch.set_grad_enabled(t > 2):
                out[:, t] = x.mean(1) * (t + 1)  # <-
        return out
    """,
    "what was made elsewhere": """
        for t in range(n):
            x.data[:, t] = 0  # <-
        return x
    """,
}


def written(body: str) -> str:
    return HEAD + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"


def changed(text: str, write: bool) -> tuple[str, str]:
    """(the new text, why nothing changes)"""
    drafts = Drafts(Sources({"/t/train.py": text}))
    site = Site("/t/train.py", next(at for at, line in enumerate(text.splitlines(), 1) if "# <-" in line))
    draft = drafts["/t/train.py"]
    why = take_apart(draft, () if write else (site,), (site,) if write else ())
    return draft.render(), why


def computed(text: str) -> list[torch.Tensor]:
    space: dict[str, Any] = {}
    exec(text, space)
    torch.manual_seed(0)
    x, w = torch.randn(4, 6, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    result = space["f"](x, w)
    (result * torch.arange(result.numel()).view_as(result)).sum().backward()
    grads = [each.grad if each.grad is not None else torch.zeros(()) for each in (x, w)]
    return [result.detach(), *grads]


@pytest.mark.parametrize("name", CHANGED)
def test_the_same_values_and_gradients(name: str) -> None:
    before = written(CHANGED[name])
    after, why = changed(before, name.startswith("written"))
    assert not why and ("append(" if name.startswith("written") else ".unbind(") in after
    torch.testing.assert_close(computed(after), computed(before))


@pytest.mark.parametrize("name", LEFT)
def test_what_may_be_another_tensor_is_left_alone(name: str) -> None:
    before = written(LEFT[name])
    after, why = changed(before, "writ" in name or "elsewhere" in name)
    assert why and after == before


def test_both_in_one_statement() -> None:
    text = written("""
        out = torch.zeros(4, n, 3)
        for t in range(n):
            out[:, t] = torch.tanh(x[:, t] @ w)  # <-
        return out
    """)
    drafts = Drafts(Sources({"/t/train.py": text}))
    draft, site = drafts["/t/train.py"], Site("/t/train.py", 7)
    assert not take_apart(draft, (site,), (site,))
    after = draft.render()
    assert "out_parts.append(torch.tanh(x_parts[t] @ w))" in after
    torch.testing.assert_close(computed(after), computed(text))


def test_an_attribute_that_a_method_sets_is_left_alone() -> None:
    text = """\
class Memory:
    def write(self, t):
        self.kept = self.kept * t

    def read(self, n):
        for t in range(n):
            self.write(t)
            found = self.kept[:, t]  # <-
        return found
"""
    after, why = changed(text, False)
    assert why and after == text
    alone, why = changed(text.replace("    def write(self, t):", "    def __init__(self, t):"), False)
    assert not why and "kept_parts = self.kept.unbind(1)" in alone


@pytest.mark.parametrize(
    ("first", "alone"),
    [
        ("nn.ReLU(inplace=True), nn.Linear(3, 3)", False),
        ("nn.ReLU(True), nn.Linear(3, 3)", False),
        ("nn.Linear(3, 3), nn.ReLU(inplace=True)", True),
        ("nn.ReLU(), nn.Linear(3, 3)", True),
    ],
)
def test_a_module_that_writes_to_what_it_is_given_gets_no_view_of_several(first: str, alone: bool) -> None:
    text = f"""\
class Reader(nn.Module):
    def __init__(self):
        self.block = nn.Sequential({first})

    def forward(self, x, n):
        total = 0.0
        for t in range(n):
            total = total + self.block(x[:, t])  # <-
        return total
"""
    after, why = changed(text, False)
    assert (not why) is alone and (after == text) is not alone


def test_an_index_that_the_run_saw_otherwise_is_left_alone() -> None:
    text = written("""
        h = torch.zeros(3)
        for at in [(0, 1), (2, 3)]:
            h = h + x[at]  # <-
        return h
    """)
    column = text.splitlines()[6].index("x[at]")
    site = Site("/t/train.py", 7, column, 7, column + 5)
    for index, whole in (((0, 2), False), ((0, 1), True)):
        draft = Drafts(Sources({"/t/train.py": text}))["/t/train.py"]
        assert (not take_apart(draft, (site,), (), (index,))) == whole


def test_the_columns_tell_a_tensor_from_a_list_beside_it() -> None:
    text = written("""
        layers, h = [torch.tanh] * n, torch.zeros(4, 3)
        for t in range(n):
            h = layers[t](h + x[:, t])
        return h
    """)
    drafts = Drafts(Sources({"/t/train.py": text}))
    draft = drafts["/t/train.py"]
    line = text.splitlines()[6]
    column = line.index("x[:, t]")
    assert not take_apart(draft, (Site("/t/train.py", 7, column, 7, column + 7),), ())
    after = draft.render()
    assert "layers[t](h + x_parts[t])" in after
    torch.testing.assert_close(computed(after), computed(text))
