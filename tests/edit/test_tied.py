"""What would have to change with the size of the batches is seen, and what grows with it is let go."""

from __future__ import annotations

import textwrap

import libcst as cst
import pytest

from advisor.edit import Draft, Drafts, Sources
from advisor.edit.loading.tied import counted_by_hand, divided_by, fixed_by_hand, said_to_others


def drafted(text: str) -> tuple[Drafts, Draft]:
    drafts = Drafts(Sources({"/nowhere/train.py": "import math\nimport torch\n" + textwrap.dedent(text)}))
    return drafts, drafts["/nowhere/train.py"]


@pytest.mark.parametrize(
    "code",
    [
        "torch.arange(32)",
        "torch.arange(0, 32)",
        "torch.ones(32)",
        "torch.full((32,), 1.0)",
        "torch.eye(32)",
        "torch.randperm(32)",
        "torch.randint(0, 10, (32,))",
        "torch.randint(0, 10, size=(32, 5))",
        "torch.zeros(size=(32, 10))",
        "x.repeat(32, 1)",
        "x.expand(32, -1)",
        "x.expand(2, 32, 128)",
        "y.view(32)",
        "torch.zeros(2, 32, 128)",
        "torch.FloatTensor(32, 1).fill_(1.0)",
        "torch.cuda.FloatTensor(32, 100)",
        "torch.eye(2 * 32, dtype=bool)",
    ],
)
def test_tensor_of_as_many_rows_as_the_batch(code: str) -> None:
    assert fixed_by_hand(drafted(code + "\n")[1], 32) == 3


@pytest.mark.parametrize(
    "code",
    [
        "torch.arange(64)",
        "torch.arange(4, 32)",
        "torch.randint(32, (5,))",
        "torch.randint(0, 32, shape)",
        "torch.full(shape, 32)",
        "range(32)",
        "np.arange(32)",
        "x.repeat(1, 32)",
        "y.view(-1, 32)",
        "class Net:\n    def __init__(self):\n        self.bias = torch.zeros(32)",
        "class Data:\n    def __getitem__(self, i):\n        return torch.arange(32)",
        "class Data:\n    def __iter__(self):\n        yield torch.full((32,), 1.0)",
        "weight = nn.Parameter(torch.ones(32))",
        "torch.LongTensor([32, 5])",
        "torch.zeros(32 * hidden)",
    ],
)
def test_tensor_of_another_size(code: str) -> None:
    assert fixed_by_hand(drafted(code + "\n")[1], 32) is None


@pytest.mark.parametrize(
    "code",
    [
        "for x in loader:\n    if len(x) < 32:\n        break",
        "for x in loader:\n    if x.size(0) != 32:\n        continue",
        "def step(x):\n    if x.shape[0] == 32:\n        return net(x)",
        "assert x.shape == (32, 3, 8, 8)",
        "accuracy = right / (len(loader) * 32)",
        "for i, x in enumerate(loader):\n    print(i * 32)",
        "for i, x in enumerate(tqdm(train_loader)):\n    seen = 32 * (i + 1)",
        "OneCycleLR(optimizer, 0.1, steps_per_epoch=len(dataset) // 32 + 1)",
        "steps = math.ceil(len(train) / 32)",
        "real = torch.tensor([1.0] * 32)",
        "for x in loader:\n    a, b = net(x[:32]), net(x[32:])",
        "for x in loader:\n    for i in range(32):\n        total += net(x[i])",
    ],
)
def test_number_that_counts_the_samples_of_a_batch(code: str) -> None:
    draft = drafted(code + "\n")[1]
    assert counted_by_hand(draft, 32) is not None
    assert counted_by_hand(draft, 16) is None


@pytest.mark.parametrize(
    "code",
    [
        "if len(sys.argv) < 32:\n    usage()",
        "if len(x.shape) == 32:\n    x = x[0]",
        "if x.shape[1] == 32:\n    x = x.t()",
        "side = len(names) * 32",
        "rows = height // 32",
        "tokens = len(text) // 32",
        "for i, tile in enumerate(tiles):\n    x0 = i * 32",
        "save(fake[:32])",
        "first, rest = x[:16], x[32:]",
        "for i in range(32):\n    show(x[i])",
        "for x in loader:\n    for i in range(32):\n        pass",
        "for x in loader:\n    if i % 100 == 0:\n        for j in range(32):\n            show(x[j])",
        "bits = 32 * 2",
        "for i, x in enumerate(loader):\n    step(x)\nwidths = [32 * 2**i for i in range(3)]",
        "for i, x in enumerate(train_loader):\n    print(32 * i / len(train_loader))",
        "widths = [64] * 32",
        "for x in loader:\n    for i in range(32):\n        x = blocks[i](x)",
        "history.append(1)\nif len(history) > 32:\n    history.pop(0)",
    ],
)
def test_number_that_counts_something_else(code: str) -> None:
    assert counted_by_hand(drafted(code + "\n")[1], 32) is None


def test_pair_is_no_batch() -> None:
    assert counted_by_hand(drafted("if len(x) != 2:\n    usage()\n")[1], 2) is None


def test_single_row_is_no_batch() -> None:
    assert fixed_by_hand(drafted("torch.ones(1)\nx.repeat(1, 1)\nx.expand(4, 1, 8)\nx.view(1)\n")[1], 1) is None


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("CharRNN(vocab, hidden=256, batch_size=32)", 3),
        ("CharRNN(vocab, bs=32)", 3),
        ("CharRNN(vocab, batch_size=64)", None),
        ("DataLoader(rest, batch_size=32)", None),
        ("class Net:\n    def __init__(self, n, batch_size):\n        self.b = batch_size\nNet(8, 32)", 6),
        ("class Net:\n    def __init__(self, n, batch_size=32):\n        self.b = batch_size\nNet(8)", 6),
        ("class Net:\n    def __init__(self, n, batch_size=32):\n        self.b = batch_size\nNet(8, 4)", None),
        ("def score(net, bs=32):\n    return DataLoader(ds, batch_size=bs)\nscore(net)\nscore(net, bs=32)", None),
        ("def score(net, bs=32):\n    return net(bs)\nscore(net, **options)", None),
        ("BATCH = 32\nstate = Net(BATCH)", 3),
        ("BATCH = 32\nheld_out = DataLoader(ds, BATCH)", None),
        ("hidden = 32\nstate = Net(hidden)", None),
    ],
)
def test_same_number_for_what_is_no_loader(code: str, line: int | None) -> None:
    assert said_to_others(drafted(code + "\n")[1], 32, ()) == line


def test_number_that_is_changed_is_not_another_one() -> None:
    _, draft = drafted("class Config:\n    batch_size: int = 32\ncfg = Config(batch_size=32)\nNet(cfg.batch_size)\n")
    (passed,) = [each.value for each in draft.nodes(cst.Arg) if each.keyword is not None]
    assert said_to_others(draft, 32, (passed,)) is None
    assert said_to_others(draft, 32, ()) == 5


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("TOTAL = 64\nACCUM = TOTAL // BATCH", True),
        ("accumulate = 4096 // BATCH", True),
        ("accumulate = total_batch // (BATCH * world)", True),
        ("accumulate = math.ceil(64 / BATCH)", True),
        ("accumulate = max(1, args.effective // BATCH)", True),
        ('accumulate = 64 // cfg["BATCH"]', True),
        ("fit(gradient_accumulation_steps=64 // BATCH)", True),
        ("self.n = len(x)\nself.every = self.total // BATCH", True),
        ("accumulate = 64\naccumulate //= BATCH", True),
        ("rounds, rest = divmod(64, BATCH)", True),
        ("steps = len(ds)\nsteps //= BATCH", False),
        ("steps = len(ds) // BATCH", False),
        ("steps = epochs * len(ds) // BATCH", False),
        ("n = len(ds)\nsteps = (n + BATCH - 1) // BATCH", False),
        ("n, d = x.shape\nsteps = math.ceil(n / BATCH)", False),
        ("self.n = len(x)\nsteps = self.n // BATCH", False),
        ("N = 50000\nsteps = epochs * N // BATCH", False),
        ("loss = total / BATCH", False),
        ("half = BATCH // 2", False),
        ("ACCUM = 64 // other", False),
    ],
)
def test_count_that_is_divided_by_the_size(code: str, found: bool) -> None:
    drafts, draft = drafted(code + "\n")
    assert bool(divided_by(drafts, draft, ("BATCH", ""), 128)) is found
