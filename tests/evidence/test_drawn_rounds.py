"""Loops whose rounds differ by what they draw, read in the source."""

from __future__ import annotations

import textwrap

import pytest

from advisor.evidence.python_loops.drawn_rounds import loop_of_samples, loops_that_draw

APART = {
    "samples of a posterior": "for _ in range(k):\n    z = mu + std * torch.randn_like(std)\n    terms.append(f(z))\n",
    "dropout": "draws = torch.stack([model(x) for _ in range(20)])\n",
    "a sum": "total = 0.0\nfor _ in range(k):\n    total = total + lossof(net(x + noise()), y)\n",
    "another loop, independent": "for _ in range(k):\n    out.append(net(x))\nfor i in range(3):\n    y.append(x[i])\n",
}
SILENT = {
    "a sampler's steps": "for _ in range(k):\n    x = x + 0.1 * score(x) + torch.randn_like(x)\n",
    "a state in place": "for _ in range(k):\n    x.add_(torch.randn_like(x))\n    out.append(net(x))\n",
    "a state of the object": "for _ in range(k):\n    self.z = net(self.z) + noise()\n",
    "rows of a state": "for _ in range(k):\n    state[0] += noise()\n    out.append(net(state))\n",
    "an optimizer": "for _ in range(k):\n    loss = net(x + noise())\n    loss.backward()\n    opt.step()\n",
    "gradients in a round": "for _ in range(k):\n    g = torch.autograd.grad(f(x + noise()), x)\n    out.append(g)\n",
    "a benchmark": "for _ in range(k):\n    t = time.perf_counter()\n    net(noise())\n    out.append(t)\n",
    "a game": "for _ in range(k):\n    obs = env.step(policy(obs))\n    out.append(obs)\n",
    "a buffer": "for _ in range(k):\n    memory.push(net(noise()))\n",
    "until it fits": "for _ in range(k):\n    z = noise()\n    if f(z) > 0:\n        break\n",
    "its number counts": "for t in range(k):\n    out.append(net(noise(), t))\n",
    "layers": "out = [layer(x) for layer in layers]\n",
    "one of two": "for _ in range(k):\n    a.append(f(noise()))\nfor _ in range(k):\n    b.append(g(noise()))\n",
    "beside a recurrence": "for _ in range(k):\n    a.append(f(noise()))\nfor t in range(9):\n    h = cell(x[t], h)\n",
    "beside what goes on": "for _ in range(k):\n    a.append(f(noise()))\nwhile more():\n    h = cell(h)\n",
    "a stream of its own": "for _ in range(k):\n    a.append(torch.randn(3, generator=g))\n",
    "no source": "for _ in:\n",
}


def found(text: str) -> list[int]:
    return loops_that_draw("def f(self, x):\n" + textwrap.indent(text, "    "), 1)


@pytest.mark.parametrize("text", APART.values(), ids=APART.keys())
def test_rounds_that_could_be_one(text: str) -> None:
    lines = found(text)
    assert len(lines) == 1 and lines[0] > 0


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT.keys())
def test_rounds_that_need_each_other_or_cannot_be_told_apart(text: str) -> None:
    lines = found(text)
    assert len(lines) != 1 or lines[0] == 0


def test_loops_of_functions_are_not_those_of_the_script() -> None:
    text = "def f(x):\n    return [net(x) for _ in range(9)]\n\n\nfor _ in range(k):\n    a.append(net(noise()))\n"
    assert loops_that_draw(text, 0) == [5]
    assert loops_that_draw(text, 1) == [2]


FUTURE = """
def sample(self, state, last):
    path = []
    for _ in range(self.hours):
        state = self.cell(last, state)
        last = self.mean(state) + torch.randn_like(last)
        path.append(last)
    return torch.cat(path, 1)


def forecast(self, state, last):
    return torch.stack([self.sample(state, last) for _ in range(50)])


def inline(self, start, last):
    for _ in range(50):
        state = start
        for _ in range(self.hours):
            state = self.cell(last, state)
        paths.append(state)


def play(self, env):
    for _ in range(50):
        env.reset()
        self.sample(env.state, env.last)


def chain(self, state, last):
    for _ in range(50):
        state = self.sample(state, last)


def by_number(self, state, last):
    return [self.sample(state + number, last) for number in range(50)]
"""


CHANGES = {
    "the next batch": "x = next(it)\n        out.append(self.sample(x, x))",
    "a number of the object": "out.append(self.sample(self.h, last))\n        self.h = out[-1]",
    "an item of it": "h = self.mem['h']\n        self.mem['h'] = self.sample(h, last)",
    "a list of it": "x = self.sample(self.history[-1], last)\n        self.history.append(x)",
    "another name for it": "h = self.h\n        h.copy_(self.sample(h, last))",
    "a game": "obs = env.act(self.sample(state, last))\n        out.append(obs)",
}


@pytest.mark.parametrize("body", CHANGES.values(), ids=CHANGES.keys())
def test_what_goes_on_from_one_round_to_the_next(body: str) -> None:
    text = f"def f(self, state, last):\n    for _ in range(50):\n        {body}\n"
    assert loop_of_samples(text, 1, "sample") is None


def test_a_file_s_own_loops_are_not_those_of_its_functions() -> None:
    text = (
        "for _ in range(1000):\n    x = one(x)\n\n\n"
        "def self_check(x):\n    return [one(x) for _ in range(2)]\n"
    )
    assert loop_of_samples(text, 0, "one") is None and loop_of_samples(text, 5, "one") == 6


def line_of(part: str) -> int:
    return next(at for at, line in enumerate(FUTURE.splitlines(), 1) if part in line)


@pytest.mark.parametrize(("function", "called"), [("forecast", "sample"), ("inline", "")])
def test_the_loop_that_draws_one_future_after_another(function: str, called: str) -> None:
    begins = line_of(f"def {function}(")
    assert loop_of_samples(FUTURE, begins, called) == begins + 1


@pytest.mark.parametrize("function", ["play", "chain", "by_number", "sample"])
def test_no_loop_whose_rounds_need_each_other_draws_futures(function: str) -> None:
    assert loop_of_samples(FUTURE, line_of(f"def {function}("), "sample") is None
