"""The script asks for a compiled model, and another one runs: what was compiled is never called."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.calls import argument
from advisor.edit.compiling import compile_refused
from advisor.edit.locate import call_at
from advisor.evidence.fusion import basis, fused, graphs_per_step, not_in_place, too_old_for_triton
from advisor.fixes import edited
from advisor.rule import Advice, Example, Finding, Gain, Rule, Safety, at, call_sites, where

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import CallSite, RunRecord, Site

_LEAST_GAIN = 1.10  # a prior asks for more than what could just be measured
_FROM = (2, 2)  # the version that brought Module.compile()
_NAMES = (ast.Name, ast.Attribute)
_PARAMETERS = ("model", "fullgraph", "dynamic", "backend", "mode", "options", "disable")


class CompileConflicts(Rule):
    """``torch.compile`` was called, and not one graph was compiled: the steps run the model as it was.

    ``torch.compile(model)`` compiles nothing by itself. It returns a wrapper whose calls are compiled, and leaves
    `model` alone. So nothing is compiled where the wrapper is not kept, where the steps call the model under its
    old name, and where they call a method of the wrapper other than ``forward``: ``compiled.loss(x)`` is looked up in
    the model, and the ``self(x)`` in it is the model's own call. ``model.compile(…)`` compiles the model's own call in
    place, whoever makes it and under whatever name; the class and the names in the ``state_dict`` stay what they are.
    Reported only where Dynamo has compiled no frame in the whole run, and the steps do call the model.

    Two more orders that are warned of elsewhere are not reported, because they were measured to cost nothing
    (tests/benchmarks/results/compile_and_ddp.md): ``DistributedDataParallel`` around a compiled model or a compiled
    ``DistributedDataParallel``, and averages (EMA) made of the compiled model. ``SyncBatchNorm`` could not be measured.

    When not: the compiled model is for later, and the training was meant to run without it (not reported where the
    script calls the wrapper by another name than the model's, or hands it on); checkpoints that were written from the
    wrapper are to be read, whose names begin with ``_orig_mod.``.

    Source: PyTorch docs, ``torch.nn.Module.compile``: "Compile this Module's forward using torch.compile(). This
    Module's ``__call__`` method is compiled"; ``torch/_dynamo/eval_frame.py``, ``OptimizedModule.__getattr__``, which
    hands out what the module has. The gain is that of the rule ``compile-graph-breaks`` for a function given up.
    """

    id = "compile-conflicts"
    title = "Run the model that is compiled"
    safety = Safety.NUMERIC
    takes_memory = True
    after = ("amp-autocast", "channels-last")

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or record.compiles or graphs_per_step(evidence) or _disabled(record):
            return
        # A wrapper that is called has a record of its own, as compiled: what became of it is Dynamo's matter.
        called = {model.cls for model in record.models if model.calls and not model.compiled}
        places = [
            each
            for each in call_sites(evidence, "torch.compile", every_step=False)
            if each.details.get("target") in called and not _told_not_to(each) and not _for_later(each.site)
        ]
        gain = Gain.prior(evidence.what_if(fused(evidence)), basis(evidence))
        if len(places) != 1 or gain.likely < _LEAST_GAIN:
            return
        (place,) = places
        name = str(place.details.get("target"))
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{at(place.site)} asks for a compiled {name}, and no graph was compiled in the whole run: the "
            f"steps call the {name} that is not.",
            gain=gain,
            evidence={"graphs_compiled": record.compiles, "graphs_per_step": 0.0, "step_s": evidence.step_s},
            site=place.site,
            parameters={"target": name},
            unmet=_unmet(evidence, record),
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        text = (
            f"Compile the model in place {where(finding.site)}, with model.compile() for torch.compile(model): the "
            "model's own call is then the compiled one, under whatever name and from whatever method."
        )
        if finding.unmet:
            return Advice(text, " ".join(finding.unmet))
        if finding.site is None:
            return Advice(text, "its place is unknown")
        drafts = Drafts(sources)
        draft = drafts[finding.site.file]
        call = call_at(draft, finding.site, ("compile",))
        why = _in_place(draft, call) if call is not None else "the call cannot be told from others of its line"
        return Advice(text, why) if why else edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch

model = Net().to(device)
torch.compile(model, mode="reduce-overhead")  # much faster  # <-
for x in loader:
    loss = model(x)
""",
            after="""
import torch

model = Net().to(device)
model.compile(mode="reduce-overhead")  # much faster
for x in loader:
    loss = model(x)
""",
        ),
        Example(
            before="""
import torch

def build(config):
    net = torch.compile(Net(config).train(), dynamic=True)  # <-
    return net
""",
            after="""
import torch

def build(config):
    net = Net(config).train()
    net.compile(dynamic=True)
    return net
""",
        ),
        Example(
            before="""
import torch

class Learner:
    def __init__(self, net):
        self.net = net
        self.fast = torch.compile(self.net)  # <-

    def step(self, x):
        return self.net.loss(x)
""",
            after="""
import torch

class Learner:
    def __init__(self, net):
        self.net = net
        self.net.compile()
        self.fast = self.net

    def step(self, x):
        return self.net.loss(x)
""",
        ),
        Example(
            before="import torch\nmodel = torch.compile(model)  # <-\nfor x in xs:\n    model.loss(x).backward()\n",
            after="import torch\nmodel.compile()\nfor x in xs:\n    model.loss(x).backward()\n",
        ),
    )
    LEAVES_ALONE = (
        Example("import torch\nnets = [torch.compile(net) for net in nets]  # <-\n", ""),
        Example("import torch\nnet = wrap(torch.compile(make()))  # <-\n", ""),
        Example("import torch\nnet = torch.compile(**settings)  # <-\n", ""),
        Example("import torch\na = b = torch.compile(Net())  # <-\n", ""),
    )


def _in_place(draft: Draft, call: cst.Call) -> str:
    """Have the model compiled in place; why not, as a clause, where that cannot be written."""
    model = argument(call, "model", _PARAMETERS)
    statement = draft.statement(call)
    others = [each for each in call.args if each is not model]
    # What stands in front of the options is positional, or unpacked: it would become another parameter.
    if model is None or statement is None or any(each.keyword is None or each.star for each in others):
        return "what it is given cannot be told from the source"
    if "_orig_mod" in draft.module.code:
        return "the script speaks of the wrapper's _orig_mod"
    if why := compile_refused(draft):
        return why
    body = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    options = ", ".join(f"{each.keyword.value}={draft.code(each.value)}" for each in others if each.keyword)
    if isinstance(body, cst.Expr) and body.value is call and _is_name(model.value):
        draft.replace(call, f"{draft.code(model.value)}.compile({options})")
        return ""
    if not isinstance(body, cst.Assign) or body.value is not call or len(body.targets) != 1:
        return "it is part of another statement"
    target = body.targets[0].target
    if not _is_name(target):
        return "it is part of another statement"
    name, given = draft.code(target), draft.code(model.value)
    given = f"({given})" if "\n" in given else given
    if name == given:
        in_place = cst.Expr(cst.parse_expression(f"{name}.compile({options})"))
        draft.change(body, lambda _: in_place)
    elif _is_name(model.value):
        draft.insert_before(statement, f"{given}.compile({options})")
        draft.replace(call, given)
    else:
        draft.replace(call, given)
        draft.insert_after(statement, f"{name}.compile({options})")
    return ""


def _is_name(node: cst.BaseExpression) -> bool:
    """``net``, ``self.net``: what may be written twice."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def _for_later(site: Site) -> bool:
    """Whether the script does something with what was compiled that it has not come to when it was stopped.

    That is: the wrapper has a name of its own, and it is called or handed to something under that name.
    """
    try:
        tree = ast.parse(Path(site.file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        if node.lineno <= site.line <= (node.end_lineno or 0):
            given = {ast.unparse(each) for each in _compiled_models(node.value) if isinstance(each, _NAMES)}
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {ast.unparse(each) for each in targets} - given
            # Of a model that was made on the spot the wrapper's name is the only one.
            return bool(given) and any(_used(each, names) for each in ast.walk(tree))
    return False


def _compiled_models(value: ast.expr) -> Iterator[ast.expr]:
    """What the calls of ``torch.compile`` in `value` are given."""
    for call in ast.walk(value):
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == "compile":
            yield from call.args[:1]
            yield from (word.value for word in call.keywords if word.arg == "model")


def _used(node: ast.AST, names: set[str]) -> bool:
    """Whether one of `names` is called, handed to a call, or returned."""
    if isinstance(node, ast.Return):
        values = node.value.elts if isinstance(node.value, (ast.Tuple, ast.List)) else [node.value]
        return any(each is not None and ast.unparse(each) in names for each in values)
    if not isinstance(node, ast.Call):
        return False
    return any(ast.unparse(each) in names for each in (node.func, *node.args, *(word.value for word in node.keywords)))


def _told_not_to(place: CallSite) -> bool:
    options = place.details.get("options")
    return isinstance(options, dict) and options.get("disable") == "True"


def _disabled(record: RunRecord) -> bool:
    """Whether the environment has Dynamo do nothing: somebody's decision, of which the script knows nothing."""
    return record.environment.variables.get("TORCHDYNAMO_DISABLE", "0") not in ("", "0")


def _unmet(evidence: Evidence, record: RunRecord) -> tuple[str, ...]:
    version = tuple(int(each) for each in record.environment.torch.split("+")[0].split(".")[:2] if each.isdigit())
    found = []
    if version < _FROM:
        found.append("Module.compile() came with torch 2.2: call what torch.compile returns instead.")
    if not record.environment.compiler:
        found.append("There is no C++ compiler: install one (apt-get install g++).")
    return (*found, *too_old_for_triton(evidence), *not_in_place(evidence))
