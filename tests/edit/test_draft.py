"""Statements are put in, wrapped and removed without touching what is around them."""

from __future__ import annotations

import textwrap

import libcst as cst
import pytest

from advisor.edit import Draft, Source
from advisor.edit.locate import call_at
from advisor.edit.names import after_imports, ensure_name, fresh_name, full_name, name_for
from advisor.harness.layout import Site


def draft_of(code: str) -> Draft:
    return Draft(Source("/x/train.py", textwrap.dedent(code).lstrip("\n")))


LOOP = """
for x, y in loader:
\t# forward
\tout = model(x)  # logits

\tloss = loss_fn(
\t\tout,
\t\ty,
\t)
\tloss.backward()
\topt.step()
"""


def test_wrapped_statements_keep_comments_and_tabs() -> None:
    draft = draft_of(LOOP)
    loop = draft.nodes(cst.For)[0]
    body = list(loop.body.body)
    draft.wrap(body[0], body[1], "with torch.autocast('cpu')")
    assert draft.render() == (
        "for x, y in loader:\n"
        "\t# forward\n"
        "\twith torch.autocast('cpu'):\n"
        "\t\tout = model(x)  # logits\n"
        "\n"
        "\t\tloss = loss_fn(\n"
        "\t\t\tout,\n"
        "\t\t\ty,\n"
        "\t\t)\n"
        "\tloss.backward()\n"
        "\topt.step()\n"
    )


def test_changes_inside_a_wrapped_statement_and_beside_it_go_together() -> None:
    draft = draft_of("def f():\n    a = g(1)\n    # b\n    b = h(a)\n    return b\n")
    first, second, _ = draft.nodes(cst.FunctionDef)[0].body.body
    draft.replace(draft.nodes(cst.Call)[0].args[0].value, "2")
    draft.wrap(first, second, "with c")
    draft.insert_before(first, "z = 0")
    draft.insert_after(second, "y = 0")
    assert draft.render() == (
        "def f():\n    with c:\n        z = 0\n        a = g(2)\n"
        "        # b\n        b = h(a)\n        y = 0\n    return b\n"
    )


def test_inserted_statement_goes_below_the_comment_above() -> None:
    draft = draft_of("import a\n\n# the optimizer\nopt = SGD()\n")
    draft.insert_before(draft.module.body[1], "model = 1")
    assert draft.render() == "import a\n\n# the optimizer\nmodel = 1\nopt = SGD()\n"


def test_removed_statement_leaves_a_valid_block() -> None:
    draft = draft_of("for p in ps:\n    p.zero_()\n")
    draft.remove(draft.nodes(cst.For)[0].body.body[0])
    assert draft.render() == "for p in ps:\n    pass\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1\n# about it\nremoved()\ny = 2\n", "x = 1\ny = 2\n"),
        ("x = 1\n\n# a section\n\n# about it\nremoved()\ny = 2\n", "x = 1\n\n# a section\n\ny = 2\n"),
        ("x = 1\n\nremoved()\ny = 2\n", "x = 1\n\ny = 2\n"),
        ("x = 1\n\nremoved()\n\ny = 2\n", "x = 1\n\ny = 2\n"),
        ("removed()\n\n# the rest\ny = 2\n", "# the rest\ny = 2\n"),
        ("#!/usr/bin/env python\nremoved()\n\ny = 2\n", "#!/usr/bin/env python\n\ny = 2\n"),
    ],
)
def test_removed_statement_takes_only_its_own_comments_along(before: str, after: str) -> None:
    draft = draft_of(before)
    draft.remove(next(each for each in draft.nodes(cst.SimpleStatementLine) if "removed" in draft.code(each)))
    assert draft.render() == after


@pytest.mark.parametrize(
    ("code", "dotted", "written"),
    [
        ("import torch\n", "torch.autocast", "torch.autocast"),
        ("import torch as th\n", "torch.autocast", "th.autocast"),
        ("import torch.nn as nn\nimport torch.cuda\n", "torch.autocast", "torch.autocast"),
        ("from torch import autocast as ac, nn\n", "torch.autocast", "ac"),
        ("try:\n    import torch\nexcept ImportError:\n    raise\n", "torch.autocast", "torch.autocast"),
        ("import torch.nn as nn\n", "torch.autocast", None),
        ("from torch import *\n", "torch.autocast", None),
    ],
)
def test_name_for_uses_the_imports_there_are(code: str, dotted: str, written: str | None) -> None:
    assert name_for(draft_of(code), dotted) == written


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import torch.nn as nn\nx = 1\n", "import torch.nn as nn\nimport torch\nx = 1\n"),
        ('"""Doc."""\n\nx = 1\n', '"""Doc."""\n\nimport torch\n\nx = 1\n'),
        ('"""Doc."""\nfrom __future__ import annotations\n\nx = 1\n',
         '"""Doc."""\nfrom __future__ import annotations\nimport torch\n\nx = 1\n'),
        ("#!/usr/bin/env python\n# me\nx = 1\n", "#!/usr/bin/env python\n# me\nimport torch\nx = 1\n"),
        # libraries read the environment when they are imported
        ('import os\nos.environ["OMP_NUM_THREADS"] = "1"\nfrom torch import nn\nx = 1\n',
         'import os\nos.environ["OMP_NUM_THREADS"] = "1"\nfrom torch import nn\nimport torch\nx = 1\n'),
    ],
)  # fmt: skip
def test_missing_import_is_added_next_to_the_others(before: str, after: str) -> None:
    draft = draft_of(before)
    assert ensure_name(draft, "torch.autocast") == "torch.autocast"
    assert draft.render() == after


def test_missing_import_is_added_once() -> None:
    draft = draft_of("from torch import nn\nx = 1\n")
    assert ensure_name(draft, "torch.autocast") == "torch.autocast"
    assert ensure_name(draft, "torch.channels_last") == "torch.channels_last"
    assert draft.render() == "from torch import nn\nimport torch\nx = 1\n"


def test_setting_goes_below_the_imports() -> None:
    draft = draft_of("import torch\nfrom torch import nn\n\nx = 1\n")
    assert after_imports(draft, "torch.backends.cudnn.benchmark = True")
    assert draft.render() == ("import torch\nfrom torch import nn\n\ntorch.backends.cudnn.benchmark = True\n\nx = 1\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(
            "import os\n\ndef f():\n    pass\n\nos.environ['A'] = f()\nimport torch\nimport re\nx = 1\n",
            "import os\n\ndef f():\n    pass\n\nos.environ['A'] = f()\nimport torch\nimport re\n\ntorch.b = 1\nx = 1\n",
            id="the name is imported below a definition",
        ),
        pytest.param(
            "import torch\n\nclass A:\n    pass\n\nimport os\nimport torch\n",
            "import torch\n\ntorch.b = 1\n\nclass A:\n    pass\n\nimport os\nimport torch\n",
            id="imported again",
        ),
        pytest.param(
            "import os; import torch; torch.manual_seed(0)\nx = 1\n",
            "import os; import torch; torch.manual_seed(0)\n\ntorch.b = 1\nx = 1\n",
            id="a line of several statements",
        ),
        pytest.param(
            "import torch\n\nfor x in xs:\n    step(x)\nimport matplotlib\n",
            "import torch\n\ntorch.b = 1\n\nfor x in xs:\n    step(x)\nimport matplotlib\n",
            id="before the loop",
        ),
    ],
)
def test_setting_goes_where_its_name_is_bound(before: str, after: str) -> None:
    draft = draft_of(before)
    assert after_imports(draft, f"{ensure_name(draft, 'torch')}.b = 1")
    assert draft.render() == after


def test_full_name_resolves_aliases() -> None:
    draft = draft_of("from torch.utils.data import DataLoader as DL\nDL(x)\n")
    assert full_name(draft, draft.nodes(cst.Call)[0].func) == "torch.utils.data.DataLoader"


def test_fresh_name_avoids_what_is_taken() -> None:
    assert fresh_name(draft_of("scaler = 1\n"), "scaler") == "scaler2"


CALLS = """
a = make(x).to(device)
b = (make(y)
     .to(device))
é = "ü"; c = DL(
    ds,
    transform=Compose([A(), B()]),
)
"""


@pytest.mark.parametrize(
    ("site", "names", "found"),
    [
        # As CPython 3.12+ records them: a method on a line of its own starts at its name.
        (Site("", 1, 4, 1, 22), (), "make(x).to(device)"),
        (Site("", 1, 4, 1, 11), (), "make(x)"),
        (Site("", 3, 6, 3, 16), (), "(make(y)\n     .to(device))"),
        (Site("", 4, 15, 7, 1), (), "DL(\n    ds"),
        # As Python 3.10 records them.
        (Site("", 1), ("to",), "make(x).to(device)"),
        (Site("", 3), ("to",), "(make(y)\n     .to(device))"),
        (Site("", 6), ("DL", "DataLoader"), "DL(\n    ds"),
        (Site("", 6), ("Compose",), "Compose([A(), B()])"),
    ],
)
def test_call_at_a_recorded_site(site: Site, names: tuple[str, ...], found: str) -> None:
    draft = draft_of(CALLS)
    call = call_at(draft, site, names)
    assert call is not None
    code = draft.code(call)
    assert code.startswith(found) or f"({code})" == found or code in found


def test_call_at_refuses_to_guess() -> None:
    draft = draft_of("x, y = x.to(device), y.to(device)\n")
    assert call_at(draft, Site("", 1), ("to",)) is None
    assert call_at(draft, Site("", 9), ("to",)) is None
