"""A layer multiplies one-hot rows, where a lookup of its weights gives the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst
from libcst.helpers import get_full_name_for_node

from advisor.edit import Draft, Drafts
from advisor.edit.calls import argument
from advisor.edit.dataflow import targets_of
from advisor.edit.in_place import written_in_place
from advisor.edit.locate import call_at
from advisor.edit.names import ensure_name, full_name, last_part
from advisor.edit.scopes import assigned_once, scope_of, self_assignments, variables
from advisor.edit.sums import elements
from advisor.evidence import Change
from advisor.fixes import edited
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

_LEAST_GAIN = 1.05
# Of a product's own time, what its backward takes: the weights' gradient is another product as large, and one-hot rows
# get none.
_BACKWARD = 1.0
_CASTS = ("float", "to", "type", "half", "bfloat16", "double")
_LINEAR = ("in_features", "out_features", "bias")
# What is read of a layer, and leaves it as it is.
_READ = ("weight", "bias", "in_features", "out_features", "parameters", "named_parameters", "state_dict", "extra_repr")
_DRAWS = re.compile(r"rand|multinomial|bernoulli|sample|normal|choice|next\b|pop\b|:=", re.IGNORECASE)
_UNKNOWN = "what the layer is given, and what it is, cannot be told from the source"


class OneHotProduct(Rule):
    """A linear layer (or a product) is given rows that are zeros and a single one, and multiplies all of them.

    The result is the row of the weights that the one stands for: ``linear(one_hot(ids, V).float())`` reads B times V
    numbers, most of them zeros, and does 2·B·V·H operations for what ``embedding(ids, weight.T)`` copies, B rows of
    H numbers. Its backward multiplies as much again, where a lookup adds B rows up. Reported where a run has seen what
    is in the tensor, whoever made it.

    When not: the rows are only one-hot so far (soft labels, a relaxation that hardens); V is small. On a GPU it is not
    reported: there calls take no time of their own.

    Source: PyTorch docs, ``torch.nn.functional.embedding``. The gain is the time that these products, and the making of
    their rows, took, undisturbed; of their backward a prior.
    """

    id = "one-hot-product"
    title = "Look rows of the weights up instead of multiplying one-hot rows"
    safety = Safety.NUMERIC

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or not record.one_hot or evidence.device_is_gpu or not evidence.step_s:
            return
        forward = sum(each.seconds + each.making_s for each in record.one_hot)
        backward = _BACKWARD * sum(each.differentiated_s for each in record.one_hot)
        gain = Gain.of(evidence.what_if(Change(remove_host_s=forward + backward)))
        if gain.likely < _LEAST_GAIN:
            return
        longest = record.one_hot[0]
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{(forward + backward) / evidence.step_s:.0%} of the step makes and multiplies {longest.rows:,} "
            f"one-hot rows of {longest.columns:,} numbers, at {at(longest.site)}: all but one of each are zeros.",
            gain=gain,
            evidence={
                "one_hot_forward_s": forward,
                "one_hot_backward_s": backward,
                "rows": longest.rows,
                "columns": longest.columns,
                "step_s": evidence.step_s,
            },
            site=longest.site,
            parameters={"layer": (longest.site,)},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        site = next(iter(site_list(finding, "layer")), finding.site)
        text = (
            f"Look the rows up {where(site)}: F.embedding(ids, layer.weight.T) + layer.bias for "
            "layer(F.one_hot(ids, n).float()), or make the layer an nn.Embedding; weight[ids] for rows @ weight."
        )
        if site is None:
            return Advice(text, "its place is unknown")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        call = call_at(draft, site)
        why = _look_up(draft, call) if call is not None else _UNKNOWN
        return Advice(text, why) if why else edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch.nn.functional as F
from torch import nn

class Words(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.words = words
        self.inner = nn.Linear(words, 64)

    def forward(self, ids):
        x = F.one_hot(ids, self.words).float()
        return self.inner(x).tanh()  # <- layer=self.inner(x)
""",
            after="""
import torch.nn.functional as F
from torch import nn

class Words(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.words = words
        self.inner = nn.Linear(words, 64)

    def forward(self, ids):
        return (F.embedding(ids, self.inner.weight.T) + self.inner.bias).tanh()
""",
        ),
        Example(
            before="""
from torch import nn
from torch.nn.functional import one_hot

class Words(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.inner = nn.Linear(words, 64, bias=False)

    def forward(self, ids):
        return self.inner(one_hot(ids, 9).float())  # <- layer=self.inner(one_hot(ids, 9).float())
""",
            after="""
from torch import nn
from torch.nn.functional import one_hot

class Words(nn.Module):
    def __init__(self, words):
        super().__init__()
        self.inner = nn.Linear(words, 64, bias=False)

    def forward(self, ids):
        return nn.functional.embedding(ids, self.inner.weight.T)
""",
        ),
    )
    LEAVES_ALONE = (
        Example("def forward(self, rows):\n    return self.inner(rows)  # <-\n", ""),
        Example(
            "import torch.nn.functional as F\nfrom torch import nn\n\nclass Words:\n    def __init__(self):\n"
            "        self.inner = nn.Linear(9, 9)\n\n    def forward(self, ids):\n"
            "        x = F.one_hot(ids, 9).float()\n        return self.inner(x) + x  # <-\n",
            "",
        ),
        Example(
            "import torch.nn.functional as F\n\nclass Words:\n    def forward(self, ids):\n"
            "        return self.inner(F.one_hot(ids, 9).float())  # <-\n",
            "",
        ),
        *(
            Example(
                "import torch.nn.functional as F\nfrom torch import nn\n\nclass Words:\n    def __init__(self):\n"
                f"        self.inner = nn.Linear(9, 9)\n        {done}\n\n    def forward(self, ids):\n"
                f"        x = F.one_hot({ids}, 9).float()\n        {then}\n        return self.inner(x)  # <-\n",
                "",
            )
            for done, ids, then in (
                ("pass", "ids", "ids = ids + 1"),
                ("pass", "ids", "ids.add_(1)"),
                ("pass", "ids", "ids[0] = 0"),
                ("pass", "self.ids", "self.ids += 1"),
                ("pass", "torch.randint(9, (3,))", "noise = torch.randn(3)"),
                ("nn.utils.spectral_norm(self.inner)", "ids", "pass"),
                ("self.inner.register_forward_hook(log)", "ids", "pass"),
            )
        ),
    )


def _look_up(draft: Draft, call: cst.Call) -> str:
    """Have a layer's call on one-hot rows look its weights up; why not, as a clause, where that is not written so."""
    layer = get_full_name_for_node(call.func)
    holder, scope = draft.enclosing_class(call), scope_of(draft, call)
    if layer is None or holder is None or len(call.args) != 1 or not layer.startswith("self."):
        return _UNKNOWN
    made = self_assignments(draft, holder, layer.removeprefix("self."))
    linear = made[0] if len(made) == 1 else None
    if not isinstance(linear, cst.Call) or full_name(draft, linear.func) != "torch.nn.Linear":
        return _UNKNOWN
    bias = argument(linear, "bias", _LINEAR)
    if bias is not None and last_part(bias.value) not in ("True", "False"):
        return "whether the layer has a bias cannot be told from the source"
    given = call.args[0].value
    statement = None
    if isinstance(given, cst.Name):
        value = assigned_once(draft, given.value, scope)
        statement = draft.statement(value) if value is not None else None
        if value is None or statement is None or len(variables(draft, given.value, scope)) != 2:
            return _UNKNOWN
        given = value
    ids = _ids(draft, given)
    if ids is None or not _is_only_that(draft, holder, layer):
        return _UNKNOWN
    if _DRAWS.search(draft.code(ids)) or (statement is not None and _changed_since(draft, statement, ids)):
        return "the rows may be of other numbers than those that are there when the layer is called"
    embedding = ensure_name(draft, "torch.nn.functional.embedding")
    code = f"{embedding}({draft.code(ids)}, {layer}.weight.T)"
    if bias is None or last_part(bias.value) == "True":
        code = f"{code} + {layer}.bias"
        above = draft.parent(call)
        alone = isinstance(above, (cst.Assign, cst.Return, cst.Arg, cst.AnnAssign))
        code = code if alone else f"({code})"
    draft.replace(call, code)
    if statement is not None:
        draft.remove(statement)
    return ""


def _is_only_that(draft: Draft, holder: cst.ClassDef, layer: str) -> bool:
    """Whether the layer is called and its weights are read, and nothing else is done with it: no hook, no norm."""
    name = layer.removeprefix("self.")
    for node in draft.nodes(cst.Attribute):
        if node.attr.value != name:
            continue
        above, own = draft.parent(node), get_full_name_for_node(node) == layer
        if own and draft.enclosing_class(node) is not holder:
            continue  # another class has one of its own
        read = isinstance(above, cst.Attribute) and above.attr.value in _READ
        made = own and isinstance(above, (cst.AssignTarget, cst.AnnAssign))
        if not (read or made or (isinstance(above, cst.Call) and above.func is node)):
            return False
    return True


def _changed_since(draft: Draft, statement: cst.CSTNode, ids: cst.BaseExpression) -> bool:
    """Whether what the rows are made of may have another value, or other numbers in it, behind the statement."""
    scope = scope_of(draft, statement)
    names = {draft.code(each) for kind in (cst.Name, cst.Attribute) for each in draft.nodes(kind, ids)}
    changed = [*targets_of(draft, scope), *written_in_place(draft, scope)]
    parts = [each for target in changed if draft.line(target) > draft.line(statement) for each in elements(target)]
    return any(draft.code(each) in names for each in parts)


def _ids(draft: Draft, given: cst.BaseExpression) -> cst.BaseExpression | None:
    """``ids`` of ``one_hot(ids, n).float()``."""
    while isinstance(given, cst.Call) and isinstance(given.func, cst.Attribute) and given.func.attr.value in _CASTS:
        given = given.func.value
    if isinstance(given, cst.Call) and full_name(draft, given.func) == "torch.nn.functional.one_hot" and given.args:
        first = given.args[0]
        return first.value if first.keyword is None and not first.star else None
    return None
