"""Loops over samples are found where their rounds could be one; loops whose rounds need each other are left alone."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import BaseTorchFunctionMode, _get_current_function_mode_stack

from advisor.edit import Edit, Sources
from advisor.evidence import Evidence
from advisor.evidence.python_loops.groups import group_loop
from advisor.evidence.python_loops.loops import branching_rounds, longest_period, rounds_with_loops, sample_loop
from advisor.evidence.python_loops.rounds import busiest_loop, called_loop, independent, loop_over_parts
from advisor.harness.indexing import Indexing
from advisor.harness.layout import CallSite, Site
from advisor.harness.sites import CallSites
from advisor.launch import Command, measure
from advisor.rule import Advice
from rules.batch_size import BatchSize
from rules.python_loop_over_samples import PythonLoopOverSamples
from tests.conftest import PYTHON, QUICK

RULE = PythonLoopOverSamples()

INDEPENDENT = {
    "losses are collected": "for i in range(n):\n    d = x[i] - y\n    losses.append(d.sum())\n",
    "a sum": "for i in range(n):\n    total += f(x[i])\n",
    "a sum, written out": "for i in range(n):\n    total = total + f(x[i]) - y[i]\n",
    "some rounds are left out": "for i in range(n):\n    if x[i] == 0:\n        continue\n    total += f(x[i])\n",
    "rows are filled": "for i in range(n):\n    out[i] = x[i] * 2\n",
    "rows are iterated": "for row in x:\n    d = row - y\n    out.append(d)\n",
    "a comprehension": "out = torch.stack([torch.mm(x[i], y[i]) for i in range(n)])\n",
    "a mask of the round": "for i in range(n):\n    mine = group == i\n    out[i] = score[mine].softmax(0) @ x[mine]\n",
    "each changes its own": "for i in range(n):\n    x[i] = x[i] / f(x[i])\n",
    "each changes some of its own": "for i, seen in enumerate(y):\n    x[i, seen] = f(x[i, seen])\n    z = x[i]\n",
    "rows are added to": "for i in range(n):\n    total[group[i]] += x[i]\n",
    "a name of each round of a loop inside": (
        "for i in range(n):\n    for j in range(m):\n        v = x[i]\n        v = v * w[i, j]\n        total[i] += v\n"
    ),
    "a name of the round": "for i in range(n):\n    d = x[i]\n    d = d / d.norm()\n    out.append(d)\n",
}
DEPENDENT = {
    "a recurrence": "for t in range(n):\n    h = cell(x[t], h)\n    out.append(h)\n",
    "a recurrence through a list": "for t in range(n):\n    out.append(cell(x[t], out[-1]))\n",
    "a recurrence through a tensor": "for t in range(1, n):\n    out[t] = out[t - 1] * decay + x[t]\n",
    "a neighbour's": "for i in range(1, n):\n    x[i] = x[i] + x[i - 1]\n",
    "all of them": "for i in range(n):\n    x[i] = x[i] / x.norm()\n",
    "the same one again": "for i in order:\n    x[i] = x[i] + 1\n",
    "a number that is changed": "for i in range(n):\n    i = i // 2\n    x[i] = f(x[i])\n",
    "added to what another round has added to": "for t in range(1, n):\n    out[t] += out[t - 1] * x[t]\n",
    "a name that a loop inside left": (
        "for i in range(n):\n    total += f(v, x[i])\n    for j in range(m):\n        v = w[j]\n        v = v * v\n"
    ),
    "a name that a loop inside is told by": (
        "for i in range(n):\n    for j in range(int(v)):\n        v = x[i]\n        v = v * w\n        total += v\n"
    ),
    "a state": "for t in range(n):\n    self.h = cell(x[t], self.h)\n",
    "a method with a state": (
        "class Cell:\n    def forward(self, x):\n        self.h = x + self.h\n        return self.h\n"
        "    def run(self, x, n):\n        for t in range(n):\n            out.append(self.forward(x[t]))\n"
    ),
    "a running sum of differences": "for t in range(n):\n    m = x[t] - m\n",
    "a running mean": "for t in range(n):\n    m = 0.9 * m + 0.1 * x[t]\n",
    "the loop over steps": "for i in range(n):\n    loss = f(x[i])\n    loss.backward()\n    opt.step()\n",
    "a search": "for i in range(n):\n    if x[i] > 3:\n        break\n",
}


def line_of(text: str) -> int:
    places = ("x[i]", "x[t]", "x[mine]", "in x:")
    return next(number for number, line in enumerate(text.splitlines(), 1) if any(each in line for each in places))


@pytest.mark.parametrize("text", INDEPENDENT.values(), ids=INDEPENDENT.keys())
def test_rounds_that_could_be_one(text: str) -> None:
    found = loop_over_parts(text, line_of(text))
    assert found is not None and found[0] == 1
    assert independent(text, found[1])


@pytest.mark.parametrize("text", DEPENDENT.values(), ids=DEPENDENT.keys())
def test_rounds_that_need_each_other(text: str) -> None:
    found = loop_over_parts(text, line_of(text))
    assert found is not None
    assert not independent(text, found[1])


@pytest.mark.parametrize(
    "text", ["y = x[i]\n", "for i in range(n):\n    y = x[k]\n", "while i < n:\n    y = x[i]\n", "for i in:\n"]
)
def test_parts_that_no_loop_counts_through(text: str) -> None:
    assert loop_over_parts(text, line_of(text) if "x[i]" in text else 2) is None


CALLED = {
    "a list": "for unit in units:\n    out.append(model(unit.x, unit.edges))\n",
    "a comprehension": "y = torch.stack([self.net(hits) for hits, _ in showers])\n",
    "prepared first": "for g in graphs:\n    x = g.x.float()\n    loss = loss + f(model(x), g.y)\n",
    "by number": "for i in range(len(x)):\n    out[i] = model(x[i : i + 1])\n",
}
NOT_CALLED = {
    "another model each time": "for net in nets:\n    out.append(net(x) + model(net))\n",
    "another of a list": "for i in range(n):\n    out.append(models[i](model))\n",
    "the same again": "for _ in range(n):\n    out.append(model(x))\n",
    "a recurrence": "for x in xs:\n    h = model(x, h)\n    out.append(h)\n",
    "a rollout": "for t in range(n):\n    a = model(obs[t])\n    env.step(a)\n",
    "weights of its own": "for task in tasks:\n    w = torch.autograd.grad(model(task), ps)\n    out.append(w)\n",
    "what is called in the loop": "for x in xs:\n    def f(y):\n        return model(y)\n    out.append(f(x))\n",
    "what the loop goes over": "for part in model(x):\n    out.append(part)\n",
    "a loop until": "while n:\n    n = n - 1\n    out.append(model(x[n]))\n",
}


def loop_of(text: str, calls: float = 32.0, beside: float = 1.0) -> int | None:
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "model" in each or "net(" in each)
    forwards = [
        CallSite("Module.call", Site("train.py", line), calls_per_step=calls),
        CallSite("Module.call", Site("train.py", 99), calls_per_step=beside),
    ]
    found = called_loop(forwards, lambda _: text)
    return found.site.line if found is not None else None


@pytest.mark.parametrize("text", CALLED.values(), ids=CALLED.keys())
def test_models_called_for_one_part_after_another(text: str) -> None:
    assert loop_of(text) == 1
    assert loop_of(text, calls=4.0) is None
    assert loop_of(text, beside=30.0) is None, "most of what the model is called for is elsewhere"


@pytest.mark.parametrize("text", NOT_CALLED.values(), ids=NOT_CALLED.keys())
def test_models_whose_calls_cannot_be_one(text: str) -> None:
    assert loop_of(text) is None


def test_longest_stretch_that_repeats_itself() -> None:
    codes = np.array([9, 8, *[1, 2, 2, 3] * 5, 1, 7, 7, 7, 4], np.int64)
    start, end, period = longest_period(codes, 100)
    assert (start, end, period) == (2, 23, 4)
    assert longest_period(np.arange(50), 100) == (0, 0, 0)
    assert longest_period(np.zeros(0, np.int64), 100) == (0, 0, 0)


def test_rounds_that_go_on_in_two_ways_are_a_loop() -> None:
    short, long = [1, 2, 3], [1, 2, 3, 1, 4, 5]  # 1 takes a part
    rounds = [long, short, short, long, long, short, short, short, long, short, long, short]
    codes = np.array([9, 8, *(code for each in rounds for code in each), 7, 7], np.int64)
    ((start, end, number),) = branching_rounds(codes, codes == 1)
    assert (start, number) == (2, len(rounds) - 1)
    assert end == 2 + sum(map(len, rounds[:-1]))
    different = [[1, 2, *[3] * length] for length in range(12)]
    codes = np.array([code for each in different for code in each], np.int64)
    assert branching_rounds(codes, codes == 1) == []
    assert branching_rounds(np.zeros(0, np.int64), np.zeros(0, np.bool_)) == []


def test_what_lies_between_the_runs_of_a_loop_is_none_of_its_rounds() -> None:
    """A recurrence goes over four samples in each of its steps: 1 takes one of them."""
    step, between = [1, 2, 3] * 4, [4, 5, 6, 7, 8, 9, 4, 5]
    codes = np.array([9, *(step + between) * 6], np.int64)
    runs = branching_rounds(codes, codes == 1)
    every = len(step) + len(between)
    assert runs == [(1 + number * every, 1 + number * every + len(step), 4) for number in range(6)]


def test_rounds_that_hold_loops_of_their_own_are_a_loop() -> None:
    lengths = [5, 9, 3, 7, 7, 4, 12, 3, 6, 8]
    rounds = [[1, 2, *[3, 4, 4, 5] * length, 6, 7] for length in lengths]  # one sentence each, 3 4 4 5 a word
    codes = np.array([9, 8, *(code for each in rounds for code in each), 8, 9], np.int64)
    start, end, number = rounds_with_loops(codes)
    assert (start, end, number) == (2, 2 + sum(map(len, rounds)), len(rounds))
    few = np.array([code for each in rounds[:6] for code in each], np.int64)
    assert rounds_with_loops(few) == (0, 0, 0)
    different = [[length, 2, *[3, 4] * length, 6] for length in range(20, 40)]
    assert rounds_with_loops(np.array([code for each in different for code in each], np.int64)) == (0, 0, 0)
    assert rounds_with_loops(np.zeros(0, np.int64)) == (0, 0, 0)


OTHERS = {
    "experts": "for i, expert in enumerate(experts):\n    mine = gate == i\n    out[mine] = expert(x[mine])\n",
    "modules by number": "for i in range(n):\n    out[i] = heads[i](x[i])\n",
    "a module by name": "for i in range(n):\n    head = heads[i]\n    out[i] = head(x[i])\n",
    "a comprehension": "y = torch.stack([heads[i](x[i]) for i in range(n)])\n",
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS.keys())
def test_rounds_with_a_module_each_are_not_for_all_samples(text: str) -> None:
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "x[" in each)
    taken = CallSite("Tensor.index", Site("train.py", line), 100, 10.0, details={"rows": 10})
    assert loop_over_parts(text, line) is not None
    assert busiest_loop([taken], lambda path: text) is None


def test_rounds_that_call_the_same_function_are() -> None:
    text = "for i in range(n):\n    out.append(f(x[i]))\n"
    taken = CallSite("Tensor.index", Site("train.py", 2), 100, 10.0, details={"rows": 10})
    found = busiest_loop([taken], lambda path: text)
    assert found is not None and found.line == 1


MINED = """class Triplets:
    def hardest(self, negative):
        return negative[negative > 0].min()

    def terms(self, dist, choose):
        found = []
        for i in range(len(dist)):
            found.append(choose(dist[i]))
        return found

for x, y in loader:
    triplets.terms(net(x), triplets.hardest)
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("", "", 7),
        ("choose(dist[i])", "self.hardest(dist[i])", None),  # by its name: whose rounds these are is not known
        ("for x, y in loader", "for x, y in loader[0]", None),  # what is taken there may be a part of a tensor
        ("for x, y in loader", "while x := loader()", None),
    ],
)
def test_parts_taken_by_functions_and_loaders_belong_to_no_loop_of_their_own(
    old: str, new: str, line: int | None
) -> None:
    text = MINED.replace(old, new)
    taken = [
        CallSite("Tensor.index", Site("train.py", number), 100 * times, 10.0, details={"iterates": False})
        for number, times in ((3, 9), (8, 9), (11, 8))
    ]
    found = busiest_loop(taken, lambda path: text)
    assert (None if found is None else found.line) == line


OBJECTS = """class Net(nn.Module):
    def messages(self, nodes, edges):
        source, target = edges
        return nodes[source] + nodes[target]

    def forward(self, window):
        found = []
        for j in range(window.size(2)):
            h = self.convolve(window[:, j])
            found.append({last})
        return found
"""


@pytest.mark.parametrize(
    ("last", "line"), [("h[-1]", 8), ("h[found[-1]]", None), ("h[j]", 8), ("self.last(found[j - 1])", None)]
)
def test_what_is_unpacked_or_taken_by_a_constant_hides_no_loop(last: str, line: int | None) -> None:
    text = OBJECTS.format(last=last)
    taken = [
        CallSite("Tensor.index", Site("train.py", 3), 456, 114.0, details={"iterates": True, "rows": 2}),
        CallSite("Tensor.index", Site("train.py", 9), 228, 57.0, details={"iterates": False}),
        CallSite("Tensor.index", Site("train.py", 10), 228, 57.0, details={"iterates": False}),
    ]
    found = busiest_loop(taken, lambda path: text)
    assert (None if found is None else found.line) == line


def test_what_a_loader_takes_does_not_hide_the_loop_of_a_step() -> None:
    text = "for x, y in loader:\n    for c in range(n):\n        mask = y == c\n        loss = loss + f(x[mask])\n"
    taken = [
        CallSite("Tensor.index", Site("train.py", 1), 1024, 256.0, details={"iterates": False}),
        CallSite("Tensor.index", Site("train.py", 4), 185, 30.0, details={"iterates": False}),
    ]
    found = busiest_loop(taken, lambda path: text)
    assert found is not None and found.line == 2


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("for c in range(n):\n    mask = y == c\n    if mask.any():\n        out[c] = x[mask].mean(0)\n", True),
        ("out = torch.stack([x[batch == g].sum(0) for g in range(graphs)])\n", True),
        ("for c in range(n):\n    rows = (y == c).nonzero().squeeze(1)\n    loss = loss + f(x[rows])\n", True),
        ("out = [x[batch == g].median(0).values for g in range(graphs)]\n", None),
        ("for c in range(n):\n    own = x[y == c]\n    loss = loss + torch.cdist(own, own).mean()\n", None),
        ("for i in range(n):\n    out.append(f(x[i]))\n", False),
        ("for i in range(n):\n    out.append(f(x[y == 0], i))\n", False),
        ("for i in range(n):\n    out.append(f(x[i], y == i))\n", False),
        ("for i in:\n", False),
    ],
)
def test_loops_over_groups(text: str, groups: bool | None) -> None:
    assert group_loop(text, 1) is groups


@pytest.mark.parametrize(("pick", "share"), [("aten::index", 0.016), ("aten::select", 0.516)])
def test_rounds_that_search_all_rows_work_on_their_own_only(
    pick: str, share: float, scene: Any, tmp_path: Path
) -> None:
    made = scene(30.0)
    for number in range(10):  # 0.1 ms each: which rows of 100,000 it is, these rows, and their mean
        begin = 1.0 + 0.1 * number
        made.operator("aten::eq", begin, begin + 0.05, **{"Input Dims": [[100_000], []]})
        made.operator(pick, begin + 0.05, begin + 0.09, **{"Input Dims": [[100_000, 32], []]})
        made.operator("aten::mean", begin + 0.09, begin + 0.1, **{"Input Dims": [[100, 32]]})
    evidence = made.evidence(tmp_path)
    found = sample_loop(evidence.trace, evidence.steps, evidence.host, evidence.nesting, evidence.trace)
    assert found is not None and found.rounds == 10
    assert found.work_share == pytest.approx(share, abs=0.15 * share)


@pytest.mark.parametrize(("name", "share"), [("aten::linalg_svdvals", 0.7), ("aten::tanh", 0.0)])
def test_decompositions_in_rounds_are_work(name: str, share: float, scene: Any, tmp_path: Path) -> None:
    """What takes 0.08 of each 0.1 ms is no call of a small operator, whatever it is called."""
    made = scene(30.0)
    for number in range(10):
        begin = 1.0 + 0.1 * number
        made.operator("aten::select", begin, begin + 0.01, **{"Input Dims": [[10, 4, 4]]})
        made.operator(name, begin + 0.01, begin + 0.1, **{"Input Dims": [[4, 4]]})
    evidence = made.evidence(tmp_path)
    found = sample_loop(evidence.trace, evidence.steps, evidence.host, evidence.nesting, evidence.trace)
    assert found is not None and found.work_share == pytest.approx(share, abs=0.1)


def test_an_optimizers_loop_over_parameters_is_none_over_samples(scene: Any, tmp_path: Path) -> None:
    made = scene(30.0)
    for number in range(10):
        begin = 1.0 + 0.1 * number
        made.operator("aten::select", begin, begin + 0.02, **{"Input Dims": [[10, 32]]})
        made.operator("aten::sum", begin + 0.02, begin + 0.1, **{"Input Dims": [[32]]})
    made.operator("aten::relu", 2.5, 2.6)
    made.each("user_annotation", "Optimizer.step#Adam.step", 10.0, 20.0)
    for number in range(50):  # a longer one
        begin = 10.0 + 0.1 * number
        for part, name in enumerate(("aten::mul_", "aten::add_", "aten::addcdiv_")):
            made.operator(name, begin + 0.03 * part, begin + 0.03 * part + 0.02)
    evidence = made.evidence(tmp_path)
    found = sample_loop(evidence.trace, evidence.steps, evidence.host, evidence.nesting, evidence.trace)
    assert found is not None and (found.rounds, found.operators) == (10, 2)


def test_watching_changes_nothing_and_leaves_nothing_behind() -> None:
    sites = CallSites(torch, 0, None)
    watch = Indexing(torch, sites)
    names = ("__getitem__", "__setitem__", "__iter__", "__len__")
    before = {name: vars(torch.Tensor).get(name) for name in names}
    x = torch.arange(6.0).reshape(3, 2)
    watch.on()
    try:
        x[0] = 7.0
        assert x[1].tolist() == [2.0, 3.0] and x[x[:, 0] > 3].shape == (2, 2)
        assert [row.sum().item() for row in x] == [14.0, 5.0, 9.0]
        assert x[[1, 2]].shape == (2, 2)
        assert x[torch.tensor([1])].shape == (1, 2)
        assert x[torch.tensor([[0, 1]])].shape == (1, 2, 2)
        with pytest.raises(TypeError, match="0-d"):
            iter(torch.tensor(1.0))
        seen = {each.site.line for each in sites.records() if each.kind == "Tensor.index"}
        assert torch.tensor([x[0, 0], x.sum()]).tolist() == [7.0, 28.0]  # of tensors that have no length
    finally:
        watch.off()
    assert len(seen) == 6  # a table is no part; x[:, 0] takes no row: it is on the line of one that does
    assert {name: vars(torch.Tensor).get(name) for name in before} == before
    assert torch.tensor([x[0, 0]]).tolist() == [7.0] and not _get_current_function_mode_stack()
    assert not seen_of(sites, lambda: x[0])


def test_a_tensor_that_is_unbound_along_a_dimension_is_seen_where_that_is_asked_for() -> None:
    sites, x = CallSites(torch, 0, None), torch.zeros(3, 5)
    watch = Indexing(torch, sites)
    watch.on()
    try:
        sums = [part.sum() for part in x.unbind(-1)] + [part.sum() for part in torch.unbind(x)]
        rows = list(x)  # which unbinds, in torch's own code
    finally:
        watch.off()
    found = [each.details for each in sites.records() if each.kind == "Tensor.index"]
    assert len(sums) == 8 and len(rows) == 3
    assert [(each["rows"], each.get("unbinds", False)) for each in found] == [(5, True), (3, True), (3, False)]


def test_the_loop_over_what_is_unbound_on_its_line() -> None:
    text = "y = torch.stack([f(s) for s in x.unbind(-1)])\nparts = x.unbind(1)\nfor p in parts:\n    h = cell(p, h)\n"
    details: dict[str, object] = {"iterates": True, "rows": 64, "unbinds": True}
    taken = [CallSite("Tensor.index", Site("train.py", line), calls=1, details=details) for line in (1, 2)]
    found = busiest_loop(taken, lambda path: text)
    assert found is not None and found.line == 1
    assert busiest_loop(taken[1:], lambda path: text) is None


def test_parts_with_gradients_are_seen_with_their_dimension() -> None:
    sites = CallSites(torch, 0, None)
    watch = Indexing(torch, sites)
    buffers = torch.zeros(2, 3, requires_grad=True) * 1, torch.zeros(3, 3)
    x, out = torch.ones(2, 3, 4, requires_grad=True), torch.zeros(3, 4)
    y = x * 1
    watch.on()
    try:
        parts = [x[:, t] for t in range(3)]
        last, corner = y[..., -1], y[1, :, 0]
        out[0], out[1:], z = parts[0][1], 1.0, x.detach()[0]
        out[2] = parts[0][0, 0]
        for t in range(3):
            buffers[1][t] = buffers[0].view(3, 2)[:, 0]
        with torch.no_grad():
            z = z + x[0]
        odd = x[:1, 0], x[None, 0], x[torch.tensor([0]), 1], x[0:2]
    finally:
        watch.off()
    assert last.shape == (2, 3) and corner.shape == (3,) and z.shape == (3, 4) and len(odd) == 4
    found = [each for each in sites.records() if each.kind == "Tensor.part"]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    told = [
        (
            lines[each.site.line - 1][each.site.column : each.site.end_column] if each.site.column is not None else "",
            each.calls,
            each.details["dim"],
            each.details["size"],
            each.details["written"],
            each.details["fits"],
        )
        for each in found
    ]
    known = sys.version_info >= (3, 11)
    expected = [
        ("x[:, t]", 3, 1, 9, False, True),
        ("y[..., -1]", 1, 2, 4, False, True),
        ("y[1, :, 0]", 1, 0, 2, False, True),
        ("out[0]", 1, 0, 3, True, True),
        ("parts[0][1]", 1, 0, 2, False, True),
        ("out[2]", 1, 0, 3, True, False),
        ("parts[0][0, 0]", 1, 0, 2, False, True),
        ("buffers[0].view(3, 2)[:, 0]", 3, 1, 6, False, True),
        ("buffers[1][t]", 3, 0, 9, True, False),
    ]
    assert sorted(told) == sorted((text if known else "", *rest) for text, *rest in expected)


def seen_of(sites: CallSites, do: Callable[[], object]) -> bool:
    """Whether what `do` indexes is seen."""
    before = sum(each.calls for each in sites.records() if each.kind == "Tensor.index")
    do()
    return sum(each.calls for each in sites.records() if each.kind == "Tensor.index") > before


def test_modes_of_the_script_end_when_it_ends_them() -> None:
    sites, x = CallSites(torch, 0, None), torch.zeros(3)
    watch = Indexing(torch, sites)
    own = BaseTorchFunctionMode()
    with own:  # around the boundary at which watching would begin
        watch.on()
        assert _get_current_function_mode_stack() == [own]
        assert not seen_of(sites, lambda: x[0])
    watch.off()
    watch.on()
    try:
        assert seen_of(sites, lambda: x[0])
        with own:  # around the one at which it ends: it goes on, and sees nothing more
            watch.off()
            assert not seen_of(sites, lambda: x[0])
            assert _get_current_function_mode_stack()[-1] is own
        with torch.device("meta"):
            watch.on()
            assert torch.ones(2).is_meta and seen_of(sites, lambda: x[0])
        assert not torch.ones(2).is_meta and seen_of(sites, lambda: x[0])
    finally:
        watch.off()
    assert not _get_current_function_mode_stack()


def test_nothing_is_watched_once_something_is_compiled() -> None:
    sites, x = CallSites(torch, 0, None), torch.zeros(3)
    watch = Indexing(torch, sites)
    watch.on()
    try:
        assert seen_of(sites, lambda: x[0])
        watch.give_up()
        watch.on()
        assert not _get_current_function_mode_stack()
    finally:
        watch.off()


SCRIPT = """
import torch


class Pairs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.cell = torch.nn.GRUCell(8, 8)

    def products(self, x):
        a, b = self.left(x), self.right(x)
        return torch.stack([torch.mm(a[i], b[i]) for i in range(len(a))])

    def states(self, x):
        h = torch.zeros(1, 8)
        for t in range(len(x)):
            h = self.cell(x[t, None, 0, :8], h)
        return h

    def forward(self, x):
        return {call}


torch.manual_seed(0)
model = Pairs()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(400):
    loss = model(torch.randn(64, 16, 16)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def profiled(folder: Path, call: str) -> tuple[Path, Evidence]:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(SCRIPT).lstrip("\n").replace("{call}", call))
    command = Command(script=str(script), python=PYTHON, environment={"OMP_NUM_THREADS": "1"}, cwd=str(folder))
    return script, Evidence.from_run(measure(command, folder / "run", QUICK, timeout=120))


def test_products_per_sample_become_one(tmp_path: Path) -> None:
    script, evidence = profiled(tmp_path, "self.products(x)")
    (finding,) = RULE.check(evidence)
    lines = script.read_text().splitlines()
    assert finding.site is not None and "torch.mm(a[i], b[i])" in lines[finding.site.line - 1]
    assert finding.evidence["rounds_per_step"] == pytest.approx(64, abs=1)
    edit = RULE.fix(finding, Sources())
    assert isinstance(edit, Edit) and "return torch.bmm(a, b)" in edit.texts[str(script)]


@pytest.mark.sessions
def test_a_recurrence_is_left_alone(tmp_path: Path) -> None:
    _, evidence = profiled(tmp_path, "self.states(x)")
    assert evidence.record is not None and any(each.kind == "Tensor.index" for each in evidence.record.call_sites)
    assert not list(RULE.check(evidence))


ONE_BY_ONE = """
import torch
from torch.utils.data import DataLoader

torch.manual_seed(0)
sets = [torch.randn(n, 4) for n in torch.randint(4, 12, (4096,)).tolist()]
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10):
    for batch in DataLoader(sets, batch_size=16, collate_fn=list):
        outputs = []
        for x in batch:
            outputs.append(model(x).mean())
        loss = torch.stack(outputs).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.sessions
def test_a_model_called_for_each_sample_is_told_of_and_no_larger_batch(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ONE_BY_ONE.lstrip("\n"))
    command = Command(script=str(script), python=PYTHON, environment={"OMP_NUM_THREADS": "1"}, cwd=str(tmp_path))
    evidence = Evidence.from_run(measure(command, tmp_path / "run", QUICK, timeout=120))
    (finding,) = RULE.check(evidence)
    assert finding.site is not None and finding.parameters["calls"]
    assert "for x in batch" in script.read_text().splitlines()[finding.site.line - 1]
    assert finding.evidence["calls_per_step"] == pytest.approx(16, abs=1) and finding.gain.likely > 1.2
    assert isinstance(RULE.fix(finding, Sources()), Advice)
    assert not list(BatchSize().check(evidence))
