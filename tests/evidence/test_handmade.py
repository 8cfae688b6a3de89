"""Inference for one sample after another: the loop around a call, found through the functions in between."""

from __future__ import annotations

import pytest

from advisor.evidence import Evidence
from advisor.evidence.absent import empty_trace
from advisor.evidence.python_loops.added_gradients import adds_up_gradients
from advisor.evidence.python_loops.called_from import loop_around
from advisor.evidence.python_loops.handmade import accumulated, one_by_one
from advisor.harness.layout import CallSite, Model, RunRecord, Site, TensorInfo, Timing

ENCODER = """
class Encoder:
    def encode(self, texts):
        ids = self.tokenizer(texts)
        return self.model(ids).mean(1)  # called
"""
STATEFUL = """
class Encoder:
    def encode(self, texts):
        self.hidden = self.model(texts, self.hidden)  # called
        return self.hidden
"""
TIMED = ENCODER.replace("        ids =", "        began = timeit.default_timer()\n        ids =")
REMEMBERING = """
class Encoder:
    def encode(self, texts):
        self.seen.append(self.model(texts, self.seen[-1]))  # called
        return self.seen[-1]
"""
TOGETHER = {
    "kept in an object": "for e in xs:\n    rows.append(encoder.encode(e.text))  # loop\n    self.ids.append(e.id)\n",
    "a list": "for text in texts:\n    rows.append(encoder.encode([text]))  # loop\n",
    "counted for a progress bar": (
        "for text in texts:\n    rows.append(encoder.encode([text]))  # loop\n"
        "    if len(rows) % 100 == 0:\n        print(len(rows))\n"
    ),
    "told of now and then": (
        "for n, text in enumerate(texts):\n    rows.append(encoder.encode([text]))  # loop\n"
        "    if (n + 1) % 100 == 0:\n        so_far = torch.cat(rows)\n        print(so_far.mean(), time() - t)\n"
    ),
    "what one request asks for": "rows = [encoder.encode(each) for each in request.candidates]  # loop\n",
    "a comprehension": "rows = torch.cat([encoder.encode(t) for t in texts])  # loop\n",
    "written to a file": "for n, text in enumerate(texts):\n    f.write(f'{n} {encoder.encode(text)}')  # loop\n",
}
APART = {
    "a clock of another name": "for r in trace:\n    with Timer() as t:\n        y = encoder.encode(r)  # loop\n",
    "messages": "for m in consumer:\n    send(encoder.encode(m))  # loop\n",
    "what the world says": (
        "for i in range(99):\n    obs = robot.observe()\n    a = encoder.encode(obs)  # loop\n    robot.apply(a, i)\n"
    ),
    "a state in a dictionary": (
        "for x in xs:\n    y = encoder.encode(x, self.state['h'])  # loop\n    self.state['h'] = y\n"
    ),
    "by name": "rows = {k: encoder.encode(v) for k, v in xs.items()}  # loop\n",
    "requests whose latency is taken": (
        "for r in trace:\n    t = time.perf_counter()\n    y = encoder.encode(r)  # loop\n"
        "    took.append(time.perf_counter() - t)\n"
    ),
    "what has been found so far": (
        "for n, text in enumerate(texts):\n    rows.append(encoder.encode([text, *known]))  # loop\n"
        "    if n % 100 == 0:\n        known = select(rows)\n"
    ),
    "requests that come in": "for line in sys.stdin:\n    print(encoder.encode(line))  # loop\n",
    "requests, by their name": "total = sum(encoder.encode(r) for r in requests(99))  # loop\n",
    "a recurrence": "for x in xs:\n    h = encoder.encode(h + x)  # loop\n",
    "the same again": "for _ in range(9):\n    encoder.encode(x)  # loop\n",
    "how long the one before was": "for x in xs:\n    n = len(last)\n    last = encoder.encode(x)  # loop\n",
    "until it is good": "while bad:\n    bad = encoder.encode(x)  # loop\n",
    "no loop at all": "print(encoder.encode(x))  # loop\n",
    "one that is asked from elsewhere": "async def answer(r):\n    return encoder.encode(r)  # loop\n",
}


def found(loop: str, encoder: str = ENCODER) -> Site | None:
    texts = {"encoder.py": encoder, "main.py": loop}
    marks = {"encoder.py": "# called", "main.py": "# loop"}
    frames = [
        Site(name, next(n for n, line in enumerate(text.splitlines(), 1) if marks[name] in line))
        for name, text in texts.items()
    ]
    return loop_around(frames, lambda path: texts[path])


@pytest.mark.parametrize("loop", TOGETHER.values(), ids=TOGETHER.keys())
def test_loops_whose_samples_could_go_together(loop: str) -> None:
    assert found(loop) == Site("main.py", 1)
    for encoder in (STATEFUL, TIMED, REMEMBERING):
        assert found(loop, encoder) is None


@pytest.mark.parametrize("loop", APART.values(), ids=APART.keys())
def test_loops_whose_rounds_need_or_await_each_other(loop: str) -> None:
    assert found(loop) is None


TEXTS = {
    "a.py": "for x in xs:\n    ys.append(net(x[None]))\n",
    "b.py": "class Net:\n    def forward(self, x):\n        y, self.h = self.rnn(x, self.h)\n        return y\n",
}


def test_a_model_that_gets_one_sample_at_a_time() -> None:
    more: list[TensorInfo] = []

    def loop(*shape: int, repeats: int = 0, calls: float = 1.0, models: int = 1, own: str = "a.py") -> Site | None:
        model = Model("Net", calls=100, repeats=repeats, inputs=[TensorInfo(list(shape)), *more], own={"Net": own})
        record = RunRecord(models=[model] * models)
        site = Site("a.py", 2)
        forwards = [CallSite("Module.call", site, calls_per_step=calls, called_from=[site])]
        return one_by_one(record, forwards, TEXTS.__getitem__)

    assert loop(1, 3, 32, 32) == Site("a.py", 1)
    assert loop(4, 3, 32, 32) is None
    assert loop(1) is None, "a vector of one number"
    assert loop(1, 12, repeats=90) is None, "a benchmark"
    assert loop(1, 12, calls=9.0) is None, "several calls in a step"
    assert loop(1, 12, own="b.py") is None, "it remembers"
    more.append(TensorInfo([1]))
    assert loop(1, 12) == Site("a.py", 1), "with a number for each sample"
    more.append(TensorInfo([7, 12]))
    assert loop(1, 12) is None, "beside seven of something"
    more.clear()
    assert loop(1, 12, models=2) is None, "which of two is it?"


@pytest.mark.parametrize(
    ("backwards", "calls", "repeats", "found"),
    [
        (8.0, 8, 0, (4, 8)),
        (1.0, 8, 0, None),  # one backward for all: a solver's steps, views of one sample
        (1.0, 1, 0, None),  # nothing is accumulated
        (8.0, 8, 8, None),  # the same tensor again and again
    ],
)
def test_gradients_that_are_accumulated_over_small_batches(
    backwards: float, calls: int, repeats: int, found: tuple[int, int] | None
) -> None:
    model = Model("Net", calls=10 * calls, repeats=10 * repeats, inputs=[TensorInfo([4, 24])])
    record = RunRecord(models=[model], timing=Timing(step_s=0.03, samples_per_step=4.0 * calls))
    places = [CallSite("backward", Site("train.py", 2), calls_per_step=backwards)]
    evidence = Evidence(empty_trace(), record)
    text = "for x, y in parts:\n    (lossof(net(x), y) / args.accumulate).backward()\n"
    assert accumulated(evidence, record, places, lambda path: text) == found
    attack = "for _ in range(8):\n    lossof(net(x), y).backward()  # of the attack\n"
    assert accumulated(evidence, record, places, lambda path: attack) is None
    model.own = {"Net": "b.py"}
    assert accumulated(evidence, record, places, lambda path: TEXTS.get(path, text)) is None, "it remembers"


ADDS_UP = (
    "for x, y in parts:\n    loss = lossof(net(x), y)\n    (loss / k).backward()  # <-\n    total += loss.item()\n",
    "for i in range(k):\n    loss = lossof(net(xs[i]), ys[i])\n    loss = loss + 0.1 * aux(net)\n    loss /= k\n"
    "    scaler.scale(loss).backward()  # <-\n",
    "for i, rows in enumerate(order.split(4)):\n    loss = lossof(net(x[rows]), y[rows]) / every\n"
    "    accelerator.backward(loss)  # <-\n    running += loss.item()\n    if (i + 1) % every == 0:\n"
    "        opt.step()\n        opt.zero_grad()\n        print(running)\n        running = 0.0\n",
    "def grow(net, x, y, n):\n    loss = lossof(net(x), y) / n\n    loss.backward()  # <-\n    return loss.item()\n\n\n"
    "for x, y in parts:\n    total += grow(net, x, y, len(parts))\nopt.step()\n",
    "for chunk in parts:\n    self.manual_backward(self.loss(chunk) / len(parts))  # <-\n    self.seen += 1\n",
)
DOES_NOT = (
    "for x, y in parts:\n    lossof(net(x), y).backward()  # <-\n",
    "for x, y in parts:\n    (err(net(x), y).sum() / len(x)).backward()  # <-\n",
    "for x, y in parts:\n    loss = err(net(x), y).sum() / x.shape[0]\n    loss.backward()  # <-\n",
    "for x in parts:\n    out, h = net(x, h)\n    h = h.detach()\n    (lossof(out) / n).backward()  # <-\n",
    "for _ in range(n):\n    (lossof(net(x + delta), y) / n).backward()  # <-\n    delta.data.add_(delta.grad)\n",
    "for _ in range(n):\n    (lossof(net(x + delta), y) / n).backward()  # <-\n    delta = delta + delta.grad.sign()\n",
    "for _ in range(n):\n    (lossof(net(x + delta), y) / n).backward()  # <-\n    inner.step()\n",
    "for x in parts:\n    self.h = self.cell(x, self.h)\n    loss = lossof(self.h) / n\n    loss.backward()  # <-\n",
    "def one(net, x, y):\n    (lossof(net(x), y) / 4).backward()  # <-\n",
    "while more():\n    (lossof(net(x), y) / 4).backward()  # <-\n",
)


@pytest.mark.parametrize(("text", "adds_up"), [*((t, True) for t in ADDS_UP), *((t, False) for t in DOES_NOT)])
def test_which_gradients_are_added_up(text: str, adds_up: bool) -> None:
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "# <-" in each)
    assert adds_up_gradients(text, line) is adds_up
