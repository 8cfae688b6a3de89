"""An option is given what its type and its choices take, or nothing."""

from __future__ import annotations

import textwrap

import pytest

from advisor.edit import Drafts, Sources
from advisor.edit.origins.options import option_value


def said(declared: str, code: str, option: str = "--x", others: dict[str, str] | None = None) -> str | None:
    texts = {f"/nowhere/{path}": text for path, text in {"train.py": declared + "\n", **(others or {})}.items()}
    drafts = Drafts(Sources(texts))
    return option_value(drafts, drafts["/nowhere/train.py"], option, code)


@pytest.mark.parametrize(
    ("declared", "code", "expected"),
    [
        ("type=int, default=8", "128", "128"),
        ("type=int, default=8", "True", "1"),
        ("type=int, default=1", "False", "0"),
        ("type=int, default=32", '"bf16-mixed"', None),
        ("type=int, choices=[16, 32]", "128", None),
        ("type=int, choices=[16, 32, 128]", "128", "128"),
        ("type=int, choices=[0, 1]", "True", "1"),
        ("type=int, choices=SIZES", "128", "128"),
        ("type=int, choices=sizes()", "128", None),
        ("type=float", "128", None),
        ("type=float", "0.5", "0.5"),
        ("type=bool", "True", "True"),
        ("type=bool", "False", None),
        ("type=str2bool", "True", "True"),
        ("type=str2bool", "False", "False"),
        ("default=32", "128", None),
        ("default=False", "True", "True"),
        ("default=True", "False", None),
        ('default="32-true"', '"bf16-mixed"', "bf16-mixed"),
        ('choices=("no", "fp16", "bf16")', '"bf16"', "bf16"),
        ('choices=("no", "fp16")', '"bf16"', None),
        ('type=str, choices=["true", "false"]', "True", None),
        ("type=int", "args.workers > 0", None),
    ],
)
def test_what_argparse_takes(declared: str, code: str, expected: str | None) -> None:
    assert said(f"SIZES = (64, 128)\nparser.add_argument('-x', '--x', {declared})", code) == expected


@pytest.mark.parametrize(
    ("declared", "code", "expected"),
    [
        ("default=32", "128", "128"),
        ("default=0", "True", "1"),
        ("default=False", "False", "False"),
        ("type=click.INT", "128", "128"),
        ("type=int", '"bf16"', None),
        ("default='no'", "128", None),
        ("type=click.IntRange(1, 64)", "128", None),
        ("type=click.IntRange(1, 256)", "128", "128"),
        ("type=click.IntRange(min=1)", "128", "128"),
        ("type=click.Choice(['16', '32'])", "128", None),
        ("type=click.Choice(['32', '128'])", '"128"', "128"),
    ],
)
def test_what_click_takes(declared: str, code: str, expected: str | None) -> None:
    assert said(f"@click.option('--x', {declared})\ndef main(x): pass", code) == expected


def test_option_is_looked_for_where_the_file_imports_from() -> None:
    others = {
        "options.py": "from parsers import parser\n",
        "parsers.py": "parser.add_argument('--x', type=int)\n",
    }
    assert said("from options import parser", "True", others=others) == "1"


def test_option_that_is_declared_nowhere_takes_nothing() -> None:
    assert said("parser.add_argument('--y', type=int)", "1") is None


def test_option_of_two_parsers_takes_what_both_do() -> None:
    two = textwrap.dedent("""\
        a.add_argument('--x', type=int)
        b.add_argument('--x', {})
    """)
    assert said(two.format("type=int"), "8") == "8"
    assert said(two.format("choices=['a']"), "8") is None


def test_an_option_is_found_in_the_script_that_imports_the_file() -> None:
    script = "import data\nparser.add_argument('--num-workers', type=int, default=0)\ndata.load(parser.parse_args())\n"
    texts = {"/nowhere/data.py": "def load(args):\n    return Loader(num_workers=args.num_workers)\n"}
    modules = {"/nowhere/train.py": "__main__", "/nowhere/data.py": "data"}
    for declared, expected in ((script, "2"), (script.replace("int", "float"), None)):
        drafts = Drafts(Sources({**texts, "/nowhere/train.py": declared}, modules=modules))
        assert option_value(drafts, drafts["/nowhere/data.py"], "--num-workers", "2") == expected
