"""Arguments change in the layout that the call already has."""

from __future__ import annotations

import textwrap

import libcst as cst
import pytest

from advisor.edit import Draft, Source
from advisor.edit.calls import (
    DATALOADER_PARAMETERS,
    add_argument,
    call_method,
    remove_argument,
    set_argument,
    wrap_call,
)


def drafted(code: str) -> tuple[Draft, cst.Call]:
    draft = Draft(Source("/x/train.py", textwrap.dedent(code)))
    return draft, draft.nodes(cst.Call)[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f()", "f(n=2)"),
        ("f(a)", "f(a, n=2)"),
        ("f(a,)", "f(a, n=2,)"),
        ("f( a )", "f( a, n=2 )"),
        ("f(a, b = 1)", "f(a, b = 1, n = 2)"),
        ("f(a, **rest)", "f(a, n=2, **rest)"),
        ("f(**rest)", "f(n=2, **rest)"),
        ("f(\n    a,\n    b=1,\n)", "f(\n    a,\n    b=1,\n    n=2,\n)"),
        ("f(\n    a,\n    b=1\n)", "f(\n    a,\n    b=1,\n    n=2\n)"),
        ("f(\n    a,  # one\n    b=1,  # two\n)", "f(\n    a,  # one\n    b=1,  # two\n    n=2,\n)"),
        ("f(\n    a,\n    b=1  # two\n)", "f(\n    a,\n    b=1,  # two\n    n=2\n)"),
        ("f(a,\n  b=1,\n  c=2)", "f(a,\n  b=1,\n  c=2,\n  n=2)"),
        ("f(a, b=1,\n  c=2)", "f(a, b=1,\n  c=2, n=2)"),
        ("f(\n    a, b=1\n)", "f(\n    a, b=1, n=2\n)"),
        ("f(\n    a,\n    **rest,\n)", "f(\n    a,\n    n=2,\n    **rest,\n)"),
        ("f(a, n=0)", "f(a, n=2)"),
        ("f(a, n = 0 , b=1)", "f(a, n = 2 , b=1)"),
        ("f(a, n=(0))", "f(a, n=2)"),
    ],
)
def test_set_argument(before: str, after: str) -> None:
    draft, call = drafted(before + "\n")
    set_argument(draft, call, "n", "2")
    assert draft.render() == after + "\n"


def test_nested_block_keeps_its_indentation() -> None:
    draft, call = drafted(
        """
        def make():
            if True:
                return f(
                    a,  # the set
                    b=1,
                )
        """
    )
    add_argument(draft, call, "n", "2")
    assert draft.render() == textwrap.dedent(
        """
        def make():
            if True:
                return f(
                    a,  # the set
                    b=1,
                    n=2,
                )
        """
    )


def test_a_positional_argument_is_replaced_where_it_stands() -> None:
    draft, call = drafted("DataLoader(ds, 32, True)\n")
    set_argument(draft, call, "batch_size", "64", DATALOADER_PARAMETERS)
    set_argument(draft, call, "num_workers", "2", DATALOADER_PARAMETERS)
    assert draft.render() == "DataLoader(ds, 64, True, num_workers=2)\n"


def test_several_arguments_are_added_in_order() -> None:
    draft, call = drafted("f(\n    a,\n    b=1,\n)\n")
    add_argument(draft, call, "n", "2")
    add_argument(draft, call, "m", "3")
    assert draft.render() == "f(\n    a,\n    b=1,\n    n=2,\n    m=3,\n)\n"


def test_crlf_is_kept() -> None:
    draft = Draft(Source("/x/train.py", "f(\r\n    a,\r\n    b=1,\r\n)\r\n"))
    add_argument(draft, draft.nodes(cst.Call)[0], "n", "2")
    assert draft.render() == "f(\r\n    a,\r\n    b=1,\r\n    n=2,\r\n)\r\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("f(n=0)", "f()"),
        ("f(a, n=0)", "f(a)"),
        ("f(n=0, a=1)", "f(a=1)"),
        ("f(\n    a,\n    n=0,\n)", "f(\n    a,\n)"),
        ("f(\n    n=0\n)", "f()"),
    ],
)
def test_remove_argument(before: str, after: str) -> None:
    draft, call = drafted(before + "\n")
    remove_argument(draft, call, "n")
    assert draft.render() == after + "\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [("g(x)", "g(c(x))"), ("g(x + y)", "g(c(x + y))"), ("g((x))", "g(c((x)))")],
)
def test_wrap_call(before: str, after: str) -> None:
    draft, call = drafted(before + "\n")
    wrap_call(draft, call.args[0].value, "c")
    assert draft.render() == after + "\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [("g(x)", "g(x.m(a=1))"), ("g(x + y)", "g((x + y).m(a=1))"), ("g(-x)", "g((-x).m(a=1))")],
)
def test_call_method(before: str, after: str) -> None:
    draft, call = drafted(before + "\n")
    call_method(draft, call.args[0].value, "m", "a=1")
    assert draft.render() == after + "\n"
