"""What a loop does for its reports only, and what it computes for them in every round."""

from __future__ import annotations

import ast

import pytest

from advisor.evidence.python_loops.reports import (
    computed_for_reports,
    is_used,
    keeps_nothing,
    makes_data,
    without_reports,
)

LOOP = """
def main():
    for step, x in enumerate(xs):
        train(x)
        auc, ks = quality(recent)
        seen += 1
        if step % 50 == 0:
            print(auc, ks)
"""
QUALITY = """
def quality(window):
    auc, rows = 0.5, []
    for scores, labels in window:
        rows.extend(scores.tolist())
        auc = max(auc, score(rows))
    return auc, len(rows)
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (LOOP, (5, 7)),
        (QUALITY + LOOP, (12, 14)),  # names of the function's own are others
        (LOOP.replace("print", "self.print"), (5, 7)),
        (LOOP.replace("seen += 1", "stop.step(auc)"), None),
        (LOOP + "    return auc\n", None),
        (LOOP + "        history.append(ks)\n", None),
        (LOOP + "    def last():\n        return auc\n", None),
        (LOOP.replace("step % 50 == 0", "not (step + 1) % 50 and verbose"), (5, 7)),
        (LOOP.replace("step % 50 == 0", "step > 50"), None),  # in every step from then on
        (LOOP.replace("step % 50 == 0", "step % 50"), None),  # in 49 of 50
        (LOOP.replace("auc, ks =", "self.auc, ks ="), None),  # anybody may read it
        (LOOP + "quality(recent)\n", None),
        (LOOP.replace("    for step, x in enumerate(xs):", "    if True:"), None),
        ("def f(:\n", None),
    ],
)
def test_what_is_computed_in_every_round_for_a_report(text: str, found: tuple[int, int] | None) -> None:
    assert computed_for_reports(text, "quality") == found


ASKED = """
def main():
    while running:
        reply, extra = ask(
            x)
        reply.raise_for_status()
        if not reply.ok:
            raise IOError(reply.reason)
        if step % 50 == 0:
            print(reply, extra)
"""


@pytest.mark.parametrize(
    ("text", "used"),
    [
        (ASKED, False),
        (ASKED + "        writer.add_scalar('wait', extra)\n", False),
        (ASKED + "        train(reply.text)\n", True),
        (ASKED + "        x = extra\n", True),
        (ASKED + "        if reply.ok:\n            train(x)\n", True),
        (ASKED + "        if extra:\n            print('slow')\n", False),
        (ASKED.replace("reply, extra =", "self.reply ="), True),
        (ASKED.replace("reply, extra =", "        "), False),
        ("def f(:\n", False),
    ],
)
def test_what_is_read_of_an_answer(text: str, used: bool) -> None:
    assert is_used(text, 4) is is_used(text, 5) is used


@pytest.mark.parametrize(
    ("made", "read", "data"),
    [
        ("negatives", "y = tower(x[negatives[rows]])", True),
        ("hard", "batch = x[hard]", True),
        ("labels", "loader = DataLoader(Labelled(x, labels))", True),
        ("rows", "set = TensorDataset(x, rows)", True),
        ("accuracy", "best = max(best, accuracy)", False),
        ("metrics", "print(metrics['f1'])", False),
        ("loss, accuracy", "scheduler.step(loss)", False),
        ("losses", "history.append(losses[0])", False),
        ("self.accuracy", "print(x[rows])", False),
    ],
)
def test_what_a_training_is_given_is_no_measure(made: str, read: str, data: bool) -> None:
    text = f"for step in xs:\n    if step % 3 == 0:\n        {made} = ask(model)\n    {read}\n    loss.backward()\n"
    assert makes_data(text, 3) is data
    assert not makes_data(text, 4) and not makes_data("def f(:", 1)
    beside = f"def train():\n    {made} = ask(model)\n    for name in {made}:\n        print(x[name])\n"
    assert not makes_data(beside, 2)


@pytest.mark.parametrize(
    ("source", "nothing"),
    [
        (QUALITY, True),
        ("    def quality(self, window):\n        return self.score(window)\n", True),
        ("def quality(window):\n    window.clear()\n", False),
        ("def quality(window):\n    out = []\n    out.append(window)\n    return out\n", True),
        ("def quality(self):\n    self.calls += 1\n", False),
        ("def quality(x):\n    x.mul_(2)\n    return x\n", False),
        ("def quality(x):\n    global last\n    last = x\n", False),
        ("def quality(net, x):\n    loss = net(x)\n    loss.backward()\n", False),
        ("", True),
        ("def f(:\n", False),
    ],
)
def test_function_that_leaves_nothing_behind(source: str, nothing: bool) -> None:
    assert keeps_nothing(source) is nothing


REPORT = "if i % 100 == 0:\n    so_far = torch.cat(scores)\n    print(so_far.mean(), time.time() - began)\n"


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (f"scores.append(net(x))\n{REPORT}", 1),
        (f"scores.append(net(x))\n{REPORT}y = so_far\n", 3),  # it is read in every round
        (f"scores.append(net(x))\n{REPORT}else:\n    wait()\n", 2),
        ("scores.append(net(x))\nif i % 9 == 0:\n    scores.clear()\n", 2),
        ("scores.append(net(x))\nif i % 9 == 0:\n    break\n", 2),
        ("scores.append(net(x))\nif i % 9 == 0:\n    self.x = 3\n", 2),
        ("scores.append(net(x))\nif i > 9:\n    print(i)\n", 2),
    ],
)
def test_reports_are_no_part_of_what_a_round_does(body: str, left: int) -> None:
    assert len(without_reports(ast.parse(body).body)) == left
