"""A value of two that a condition chooses between, of ``or``, or of an attribute asked for by its name."""

from __future__ import annotations

import pytest

from tests.edit.conftest import attempt, check_edit

_PARSER = "parser.add_argument('--size', type=int{})\nargs = parser.parse_args()\n"
EDITS = {
    "the side that was run": "def make(train):\n    return DataLoader(ds, batch_size=[4] if train else 8)\n",
    "the other side": "def make(train):\n    return DataLoader(ds, batch_size=8 if train else [4])\n",
    "of three": "def make(n):\n    return DataLoader(ds, batch_size=8 if n > 1 else 16 if n else [4])\n",
    "a condition behind a name": "def make(train):\n    size = [4] if train else 8\n    return DataLoader(ds, size)\n",
    "a constant on one side": "SIZE = [4]\n\ndef make(train):\n    return DataLoader(ds, SIZE if train else 8)\n",
    "what stands for nothing": "def make(size=None):\n    return DataLoader(ds, batch_size=size or [4])\n\nmake()\n",
    "an attribute by its name": (
        "@dataclass\nclass C:\n    size: int = [4]\n\nc = C()\nDataLoader(ds, batch_size=getattr(c, 'size', 8))\n"
    ),
}
REFUSED = {
    "both sides say it": "def make(train):\n    return DataLoader(ds, batch_size=4 if train else 4)\n",
    "one side is computed": "def make(train):\n    return DataLoader(ds, batch_size=4 if train else 2 * n)\n",
    "an option or a number that agree": _PARSER.format(", default=4")
    + "DataLoader(ds, batch_size=args.size if train else 4)\n",
    "what comes first is something": "def make(n=8):\n    return DataLoader(ds, batch_size=n or 4)\n\nmake()\n",
    "what comes first is computed": "DataLoader(ds, batch_size=ask() or 4)\n",
    "and": "DataLoader(ds, batch_size=train and 4)\n",
    "an attribute that is set by its name": (
        "class C:\n    size = 4\n\nc = C()\nsetattr(c, 'size', n)\nDataLoader(ds, batch_size=getattr(c, 'size', 4))\n"
    ),
    "the condition asks for what is changed": "N = 4\nDataLoader(ds, batch_size=N if N < 32 else 32)\n",
    "the condition asks for a parameter": (
        "def make(n=4):\n    return DataLoader(ds, batch_size=n if n < 32 else 16)\n\nmake()\n"
    ),
    "what comes first is nothing in other cases": (
        "def make(n=None):\n    return DataLoader(ds, batch_size=n or 4)\n\nmake()\nmake(4)\n"
    ),
    "an option that something else has the name of": (
        _PARSER.format(", default=4") + "DataLoader(ds, batch_size=getattr(load(), 'size', 8))\n"
    ),
    "an option, or what stands for it": (
        _PARSER.format(", default=4") + "DataLoader(ds, batch_size=getattr(args, 'size', 4))\n"
    ),
    "an attribute of something unknown": "DataLoader(ds, batch_size=getattr(read(path), 'size', 4))\n",
}
OPTIONS = {
    "an option on the side that was run": _PARSER.format(", default=4")
    + "DataLoader(ds, batch_size=args.size if train else 8)\n",
    "an option, or a number": _PARSER.format("") + "DataLoader(ds, batch_size=args.size or 4)\n",
    "an option by its name": _PARSER.format(", default=4") + "DataLoader(ds, batch_size=getattr(args, 'size', 8))\n",
}


@pytest.mark.parametrize("case", EDITS)
def test_the_one_side_is_changed(case: str) -> None:
    check_edit({"data.py": EDITS[case]})


@pytest.mark.parametrize("case", REFUSED)
def test_nothing_is_changed_where_the_side_is_not_known(case: str) -> None:
    assert attempt({"data.py": REFUSED[case]}) == (None, {})


@pytest.mark.parametrize("case", OPTIONS)
def test_the_option_counts(case: str) -> None:
    assert attempt({"data.py": OPTIONS[case]}) == ("--size", {})


@pytest.mark.parametrize(
    "text",
    [
        "def make(train):\n    n = 4 if train else 8\n    return DataLoader(ds, batch_size=n)\n",
        "SIZE = 4\n\ndef make(train):\n    n = SIZE if train else 8\n    return DataLoader(ds, n)\nprint(SIZE)\n",
        "def make(m=None):\n    n = m or 4\n    return DataLoader(ds, batch_size=n)\n\nmake()\n",
        "def make(n):\n    return DataLoader(ds, batch_size=n)\n\nmake(4)\nmake(8)\n",
    ],
)
def test_a_value_of_several_is_not_replaced_for_all(text: str) -> None:
    """Where nothing but the call may get another value, it may not get it in the other cases either."""
    assert attempt({"data.py": text}, alone=True) == (None, {})


def test_the_other_side_stays_where_a_constant_is_read_elsewhere() -> None:
    """The call alone gets the value, on its side."""
    text = "SIZE = 4\n\ndef make(train):\n    return DataLoader(ds, SIZE if train else 8)\n\nprint(SIZE)\n"
    answer, changed = attempt({"data.py": text}, alone=True)
    assert (answer, changed) == ("", {"data.py": text.replace("SIZE if", "64 if")})


_READ = "cfg = yaml.safe_load(open('c.yaml'))\n\ndef make(train):\n    return DataLoader(ds, batch_size={})\n"


def test_the_side_that_a_settings_file_gives() -> None:
    check_edit({"data.py": _READ.format("cfg['size'] if train else cfg['eval']"), "c.yaml": "size: [4]\neval: 8\n"})
    check_edit({"data.py": _READ.format("cfg['size'] if train else 8"), "c.yaml": "size: [4]\neval: 4\n"})
    check_edit({"data.py": _READ.format("cfg['size'] if train else [4]"), "c.yaml": "size: 8\n"})


def test_no_side_of_a_settings_file_where_it_may_be_either() -> None:
    both = {"data.py": _READ.format("cfg['size'] if train else cfg['eval']"), "c.yaml": "size: 4\neval: 4\n"}
    assert attempt(both) == (None, {})
    put_in = {"data.py": _READ.format("cfg['size'] if train else 4") + "cfg['size'] = 4\n", "c.yaml": "size: 8\n"}
    assert attempt(put_in) == (None, {})
    merged = {"data.py": _READ.format("cfg['size'] if train else 4") + "cfg.update(more)\n", "c.yaml": "size: 8\n"}
    assert attempt(merged) == (None, {})
    other = {"data.py": _READ.format("cfg['size'] if train else ask()"), "c.yaml": "size: 4\n"}
    assert attempt(other) == (None, {})
