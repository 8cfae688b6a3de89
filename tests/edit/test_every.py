"""What is reported in each step is reported more seldom by the number that says so; nothing else is."""

from __future__ import annotations

import textwrap

import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.every import done_every
from advisor.edit.origins.values import EDITED
from advisor.harness.layout import Site

# The site is marked by "# <-"; [1] is the number that becomes 50.
SELDOM = {
    "constant": "E = [1]\nfor step, x in enumerate(xs):\n    f(x)\n    if step % E == 0:\n        log.add(x)  # <-\n",
    "literal": "for i, x in enumerate(xs):\n    f(x)\n    if (i + 1) % [1] == 0:\n        rows.append(h(net))  # <-\n",
    "more is asked": """
        E = [1]
        for step, x in enumerate(xs):
            train(x)
            if rank == 0 and not step % E:
                values = spectrum(model)  # <-
                print(values)
        """,
    "the rest is left out": """
        E = [1]
        for step, x in enumerate(xs):
            train(x)
            if step % E != 0:
                continue
            log.record(x)  # <-
        """,
    "function that is called so": """
        E = [1]

        def hist(model):
            return [histogram(each) for each in model.parameters()]  # <-

        for step, x in enumerate(xs):
            train(x)
            if step % E == 0:
                rows.append(hist(model))
        """,
    "loop over the parameters": """
        E = [1]
        for step, x in enumerate(xs):
            train(x)
            if step % E == 0:
                for name, each in model.named_parameters():
                    writer.add_histogram(name, each)  # <-
        """,
    "attribute of the one object": """
        class Log:
            def __init__(self, every):
                self.every = every

            def on_step_end(self, step, model):  # <-
                if step % self.every:
                    return
                for each in model.parameters():
                    self.rows.append(norm(each))

        Log(every=[1])
        """,
    "only one of two says so": """
        class Log:
            def __init__(self, every):
                self.every = every

            def on_step_end(self, step, model):  # <-
                if step % self.every == 0:
                    self.rows.append(norm(model))

        logs = [Log([1]), Log(10)]
        """,
    "decorator's line": """
        E = [1]

        class Log:
            @rank_zero_only  # <-
            def on_step_end(self, step, model):
                if step % E == 0:
                    self.rows.append(norm(model))
        """,
    "function that is called, whole": """
        E = [1]

        def report(step, x):
            if step % E == 0:
                os.fsync(x)

        for step, x in enumerate(xs):
            train(x)
            report(step, x)  # <-
        """,
    "item of a dict": """
        config = {"every": [1], "lr": 1}
        for step, x in enumerate(xs):
            train(x)
            if step % config["every"] == 0:
                log.record(x)  # <-
        """,
}
LOOP = "E = 1\nfor step, x in enumerate(xs):\n    "
GUARD = f"{LOOP}train(x)\n    if step % E == 0:\n        "
# Nothing of these is changed.
KEPT = {
    "accumulation, the rest is left out": (
        f"{LOOP}loss.backward()\n    if (step + 1) % E != 0:\n        continue\n    optimizer.step()\n"
        "    log.record(x)  # <-\n"
    ),
    "the rest of a block and what comes behind it": (
        f"{LOOP}with record():\n        if step % E:\n            continue\n        log.record(x)  # <-\n    train(x)\n"
    ),
    "the rest of a loop, and what comes behind it": (
        "E = 1\n\ndef go(step, xs):\n    for each in xs.items():\n        if step % E:\n            return\n"
        "        log.record(each)  # <-\n    train(xs)\n"
    ),
    "accumulation by a function": (
        f"def update():\n    optimizer.step()\n    log.record(1)  # <-\n\n{LOOP}loss.backward()\n"
        "    if (step + 1) % E == 0:\n        update()\n"
    ),
    "accumulation beside it": (
        f"def update():\n    optimizer.step()\n\n{LOOP}loss.backward()\n    if (step + 1) % E == 0:\n        update()\n"
        "        log.record(x)  # <-\n"
    ),
    "a teacher": GUARD + "teacher = copy.deepcopy(student)  # <-\n",
    "a target network": GUARD + "for p, t in zip(net.parameters(), old.parameters()):\n            t.copy_(p)  # <-\n",
    "a permutation": GUARD + "perm = torch.randperm(len(data))  # <-\n    train(data[perm])\n",
    "new samples": GUARD + "buffer.extend(rollout(env))  # <-\n",
    "a rate": GUARD + "adjust_lr(optimizer, step)  # <-\n",
    "a gradient of all": GUARD + "dist.all_reduce(x)  # <-\n",
    "a name that is read behind it": GUARD + "acc = accuracy(model)  # <-\n    bar.set_postfix(acc=acc)\n",
    "a counter": "E = 1\nwhile step < 9:\n    i += 1\n    if i % E == 0:\n        step += 1\n        log(i)  # <-\n",
    "an attribute": GUARD + "self.mask = make_mask(x)  # <-\n    train(x, self.mask)\n",
    "an item": GUARD + "state['mask'] = make_mask(x)  # <-\n",
    "a file that is read behind it": GUARD + "with open(p) as f:  # <-\n            pass\n    train(f.read())\n",
    "a buffer": GUARD + "f.write(rows)  # <-\n        rows = []\n    rows.append(x)\n",
    "a checkpoint that is read": GUARD + "torch.save(model, 'a.pt')  # <-\nmodel = torch.load('a.pt')\n",
    "the best": GUARD + "val = quality(model)  # <-\n        if val < best:\n            best = val\n    print(best)\n",
    "an evaluation": GUARD + "loss = run_validation(model)  # <-\n        print(loss)\n",
    "an end": GUARD + "if not fine(model):  # <-\n            raise StopTraining\n",
    "a yield": (
        "def go():\n    E = 1\n    for step, x in enumerate(xs):\n        if step % E == 0:\n"
        "            y = f(x)  # <-\n            yield y\n"
    ),
    "work beside the condition": (
        "E = 1\n\ndef report(step, row):\n    os.fsync(f)\n    if step % E == 0:\n        print(row)\n\n"
        "for step, x in enumerate(xs):\n    train(x)\n    report(step, x)  # <-\n"
    ),
    "a step with a print": (
        "E = 1\n\ndef go(step, x):\n    loss.backward()\n    if step % E == 0:\n        print(x)\n\n"
        "for step, x in enumerate(xs):\n    go(step, x)  # <-\n"
    ),
    "another class's method": (
        "E = 1\n\nclass Other:\n    def record(self, step):\n        if step % E == 0:\n            print(step)\n\n"
        "log = make()\nfor step, x in enumerate(xs):\n    log.record(step)  # <-\n"
    ),
    "ranks": "E = 1\nfor step, x in enumerate(xs):\n    if rank % E == 0:\n        log.record(x)  # <-\n",
    "a width": "E = 1\nfor step, x in enumerate(xs):\n    if x.shape[1] % E == 0:\n        log.record(x)  # <-\n",
    "epochs": "E = 1\nfor epoch in range(9):\n    if epoch % E == 0:\n        log.record(epoch)  # <-\n",
    "epochs, counted by i": (
        "E = 1\nfor i in range(9):\n    go(xs)\n    if i % E == 0:\n        for x in val:\n"
        "            metric(x)  # <-\n"
    ),
    "accumulation by the same option": """
        class Log:
            def __init__(self, every):
                self.every = every

            def go(self, step):
                if step % self.every == 0:
                    print(step)  # <-

        parser.add_argument("--every", type=int, default=1)
        args = parser.parse_args()
        log = Log(args.every)
        for step, x in enumerate(xs):
            if step % args.every == 0:
                optimizer.step()
            log.go(step)
        """,
    "a mean": GUARD + "log.record(running / E)  # <-\n",
    "another object that is given it": "Accumulate(E)\n" + GUARD + "log.record(x)  # <-\n",
    "two": "E = 2\nfor step, x in enumerate(xs):\n    if step % E == 0:\n        log.record(x)  # <-\n",
    "an else": GUARD + "log.record(x)  # <-\n    else:\n        quick(x)\n",
    "a choice of numbers": (
        "parser.add_argument('--every', type=int, default=1, choices=[1, 2])\nargs = parser.parse_args()\n"
        "for step, x in enumerate(xs):\n    if step % args.every == 0:\n        log.record(x)  # <-\n"
    ),
    "an option that says something else": (
        "parser.add_argument('--every', type=int, default=10)\nargs = parser.parse_args()\n"
        "for step, x in enumerate(xs):\n    if step % args.every == 0:\n        log.record(x)  # <-\n"
    ),
    "no number": "for step, x in enumerate(xs):\n    log.record(x)  # <-\n",
}


def attempt(text: str, epoch: int | None = None) -> tuple[str | None, str]:
    """What `done_every` answers, and the text afterwards."""
    text = textwrap.dedent(text)
    line = next(number for number, each in enumerate(text.splitlines(), 1) if "# <-" in each)
    drafts = Drafts(Sources({"/nowhere/train.py": text}, modules={"/nowhere/train.py": "__main__"}))
    answer = done_every(drafts, Site("/nowhere/train.py", line), 50, epoch=epoch)
    edit = drafts.edit("")
    return answer, next(iter(edit.texts.values())) if edit is not None else text


@pytest.mark.parametrize("text", SELDOM.values(), ids=SELDOM.keys())
def test_what_reports_is_done_seldom(text: str) -> None:
    text = textwrap.dedent(text)
    assert attempt(text.replace("[1]", "1")) == (EDITED, text.replace("[1]", "50"))


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
def test_what_something_depends_on_stays(text: str) -> None:
    assert attempt(text) == (None, textwrap.dedent(text))


@pytest.mark.parametrize(
    ("loop", "condition", "epoch", "done"),
    [
        ("enumerate(xs)", "(i + 1) % 1 == 0", None, False),
        ("enumerate(xs)", "(i + 1) % 1 == 0", 40, False),
        ("enumerate(xs)", "(i + 1) % 1 == 0", 50, True),
        ("enumerate(xs)", "i % 1 == 0", 40, True),
        ("enumerate(xs, 1)", "i % 1 == 0", 40, False),
        ("enumerate(xs, start=1)", "not i % 1", None, False),
    ],
)
def test_an_epoch_that_counts_anew_may_be_over_before(
    loop: str, condition: str, epoch: int | None, done: bool
) -> None:
    for around in (True, False):
        text = f"    for i, x in {loop}:\n        f(x)\n        if {condition}:\n            log.add(x)  # <-\n"
        text = f"for epoch in range(9):\n{text}" if around else textwrap.dedent(text)
        # A function may be called for each epoch.
        assert (attempt(text, epoch)[0] == EDITED) is (done or (not around and epoch is None))


def test_an_option_is_named() -> None:
    text = """
        parser.add_argument("--dump-every", type=int, default=1)
        args = parser.parse_args()
        for step, x in enumerate(xs):
            train(x)
            if not step % args.dump_every:
                dump(model)  # <-
        """
    assert attempt(text) == ("--dump-every", textwrap.dedent(text))


def test_a_file_that_is_gone_gets_no_edit() -> None:
    assert done_every(Drafts(Sources()), Site("/nowhere/train.py", 1), 50) is None
