"""Large embedding tables get gradients as large as they are, for the few rows that a step looks up."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import libcst as cst
import libcst.matchers as m

from advisor.edit import Drafts, Sources
from advisor.edit.calls import argument, has_starred, unpacked
from advisor.edit.locate import call_at
from advisor.edit.names import framework_used, full_name, last_part
from advisor.edit.origins.values import EDITED, give
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.gradients.embeddings import Tables, dense_tables, dense_work, other_lookups
from advisor.fixes import edited
from advisor.harness.layout import MOST_MATRICES, OptimizerInfo, Site
from advisor.rule import (
    Advice,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    file_list,
    model_files,
    site_list,
)

if TYPE_CHECKING:
    from advisor.edit import Edit
    from advisor.evidence import Evidence

_LEAST_ROWS_PER_LOOKUP = 4.0  # with fewer the sparse gradient is not much smaller, and its indices cost more
_LEAST_NUMBERS = 1 << 20  # in a table: of 4 MB and less a core's own cache holds much
_LEAST_GAIN = 1.15  # a prior asks for more than what could just be measured
# What is left, with sparse gradients: nanoseconds for each row that is looked up and for each number in it, and seconds
# for each table: sorting and adding up the gradient's rows, reading the parameters' rows, writing them back. Fitted to
# seven tables of 3 to 16 million numbers, 256 to 20,000 rows looked up, with torch 2.14 on two cores; all but those
# with 256 rows are within a factor of 1.3.
_COST_NS = {"SGD": (110.0, 1.4), "Adagrad": (260.0, 3.6), "Adam": (370.0, 5.6), "AdamW": (370.0, 5.6)}
_COST_S = 0.3e-3
# What an exact optimizer may be given besides `model.parameters()`: no weight decay, no momentum, not fused.
_MAY_HAVE = frozenset(("lr", "lr_decay", "eps", "initial_accumulator_value"))
# What is freed goes back to the system, page by page, above the allocator's threshold (glibc, M_MMAP_THRESHOLD: 32 MiB
# at most; an assumed default elsewhere): 0.27 us a page. Besides gradients what the optimizer computes on its way.
_FREED_FROM, _FREED_BYTE_S = 32 << 20, 67e-12
_ON_ITS_WAY = {"SGD": 0, "Adagrad": 1, "Adam": 2, "AdamW": 2}
_FLOAT = 4  # bytes
# What else the step does is quicker where whole tables no longer displace what it works on from the caches (fitted to
# three scripts, whose steps became 3.5, 4.2 and 11 times as fast).
_RELIEF = 0.3
_EXACT = ("SGD", "Adagrad")  # they leave alone what has no gradient, and take sparse ones themselves
_MADE = ("torch.nn.Embedding", "torch.nn.EmbeddingBag", "torch.nn.modules.sparse.Embedding")
_BY_POSITION = 2  # arguments: an optimizer's parameters and rate, a table's two sizes
_NAMES = tuple(name.rpartition(".")[2] for name in _MADE[:2])
_BASIS = "prior: what goes over whole tables goes over the rows that are looked up"
_SPARSE_ADAM = (
    "Make {tables} with sparse=True, and give them an optimizer of their own, torch.optim.SparseAdam, which updates "
    "the rows that a step looked up; {optimizer} keeps all other parameters."
)
_SEVERAL = re.compile(r"DistributedDataParallel|\bDataParallel|FullyShardedDataParallel|\bfully_shard\(|\ball_reduce\(")


class SparseGradients(Rule):
    """A step looks up a few rows of a large embedding table, and computes on all of it.

    The gradient of ``nn.Embedding`` is a tensor of the table's shape, zeros but for the rows that were looked up: it is
    filled, and the optimizer goes over it, over the table and over what it keeps of it, row by row. With
    ``sparse=True`` the gradient holds the rows that were looked up, and the optimizer touches those alone. SGD without
    momentum and Adagrad then compute what they did; for Adam there is ``torch.optim.SparseAdam``, which leaves rows
    that were not looked up alone, where Adam goes on moving them by what it remembers, and decays no weights. Reported
    on a CPU, where what goes over whole tables was seen in the run.

    When not: the table is used for something else, too (as the weights of the last layer); momentum or weight decay
    are needed for it; gradients are clipped by their norm, which sparse ones have not.

    Source: PyTorch docs, ``torch.nn.Embedding``, `sparse`: "only a limited number of optimizers support sparse
    gradients"; ``torch.optim.SparseAdam``. What is left is a prior, from a CPU.
    """

    id = "sparse-gradients"
    title = "Give large embedding tables sparse gradients"
    safety = Safety.BEHAVIOUR
    conflicts = ("fused-optimizer",)

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        record = evidence.record
        if record is None or evidence.device_is_gpu or evidence.compiled or not evidence.step_s:
            return
        all_tables = dense_tables(evidence)
        tables = [each for each in all_tables if _large(each)]
        optimizer = _updating(record.optimizers, tables)
        if optimizer is None or optimizer.cls not in _COST_NS or optimizer.written is not None:
            return
        if optimizer.momentum:
            return  # what is remembered of a row would go on, or stop, without its gradient
        shares = dense_work(evidence, tables) if tables else {}
        if not shares:
            return
        spent = sum(row.self_s * shares.get(row.name, 0.0) for row in evidence.operators)
        # Giving memory back is no operator: it takes no more than what lies between them.
        between = (evidence.trace_step_s or 0.0) - sum(row.self_s for row in evidence.operators)
        freed = min(max(0.0, between), sum(_freed_s(each, optimizer.cls) for each in tables))
        others = other_lookups(evidence, tables)
        places, alike = _places(evidence)
        at_once = len(places) == 1 and alike  # small tables become sparse with the large ones
        left = sum(_sparse_s(each, optimizer.cls) for each in tables)
        if others is not None and at_once:
            costs = (_COST_S * 1e9, *_COST_NS[optimizer.cls])
            left += sum(number * cost for number, cost in zip(others, costs, strict=True)) / 1e9
        # Small tables may be another optimizer's.
        alone = len(record.optimizers) == 1 or all([each.rows, each.width] in optimizer.matrices for each in all_tables)
        unknown = others is None or (others != (0, 0, 0) and not (at_once and alone))
        share = min(1.0, (spent + freed) / (evidence.trace_step_s or 1.0))
        scale = {name: 1.0 - each for name, each in shares.items()}
        relieved = 1.0 - _RELIEF * share  # of all that stays, without what is freed now
        change = Change(operator_scale=scale, cpu_scale=relieved, remove_host_s=relieved * freed - left)
        gain = Gain.prior(evidence.what_if(change), _BASIS)
        if gain.likely < _LEAST_GAIN:
            return
        exact = optimizer.cls in _EXACT and not optimizer.fused
        if unknown:
            places = ()  # which of them makes the large ones is not known
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{share:.0%} of the step goes over whole embedding tables ({_described(tables)}), of which it "
            f"looks up {sum(each.lookups for each in tables):,.0f} rows: their gradients are dense.",
            gain=gain,
            evidence={
                "dense_share": share,
                "table_rows": max(each.rows for each in tables),
                "rows_looked_up": sum(each.lookups for each in tables),
                "step_s": evidence.step_s,
            },
            site=places[0] if len(places) == 1 else optimizer.site,
            parameters={
                "tables": places,
                "optimizers": _sites([optimizer]),
                "beside": _sites(each for each in record.optimizers if _takes_none(each, tables)),
                "optimizer": optimizer.cls,
                "exact": exact,
                "others": unknown,
                "files": model_files(evidence),
            },
            safety=Safety.NUMERIC if exact else None,
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        places, name = site_list(finding, "tables"), str(finding.parameters.get("optimizer") or "the optimizer")
        tables = f"the embedding made at {at(places[0])}" if len(places) == 1 else "the large embedding tables"
        drafts = Drafts(sources)
        files = {site.file for site in (*places, *site_list(finding, "optimizers"))} | {*file_list(finding, "files")}
        reasons = (_needs_dense(drafts, path) for path in sorted(files) if sources.has(path))
        obstacle = next(filter(None, reasons), "")
        if not finding.parameters.get("exact"):
            text = _SPARSE_ADAM.format(tables=tables, optimizer=name)
            why = "rows that are not looked up then stay as they are: another training, if a similar one"
            return Advice(text, f"{why}; and {obstacle}" if obstacle else why)
        text = f"Make {tables} with sparse=True: {name} then updates the rows that were looked up, and no others."
        if finding.parameters.get("others") or not places:
            return Advice(text, "which calls make the large tables cannot be told from the source")
        if obstacle:
            return Advice(text, obstacle)
        for site in site_list(finding, "optimizers"):
            draft = drafts[site.file]
            call = call_at(draft, site, _EXACT)
            if call is None or not _plainly_made(call):
                return Advice(text, f"the optimizer's settings at {at(site)} cannot be told from the source")
        told = (*site_list(finding, "optimizers"), *site_list(finding, "beside"))
        known = [(site.file, site.line) for site in told]
        for draft in (drafts[path] for path in sorted(files) if sources.has(path)):
            for call in draft.nodes(cst.Call):
                of_torch = full_name(draft, call.func).startswith("torch.optim.")
                makes = of_torch and any(".parameters(" in draft.code(arg) for arg in call.args)
                makes = makes and last_part(call.func) not in _EXACT
                if makes and (draft.source.path, draft.line(call)) not in known:
                    return Advice(text, f"the optimizer made at line {draft.line(call)} may not take sparse gradients")
        for site in places:
            draft = drafts[site.file]
            call = call_at(draft, site, _NAMES)
            if call is None or full_name(draft, call.func) not in _MADE:
                return Advice(text, f"the call at {at(site)} does not name an embedding of torch.nn")
            if _given(call) or give(drafts, draft, call, "sparse", "True", recorded=False) != EDITED:
                return Advice(text, f"what the call at {at(site)} is given excludes sparse gradients")
        return edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
from torch import nn, optim

class SkipGram(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)  # <- tables
        self.contexts = nn.Embedding(vocabulary, width, padding_idx=0)  # <- tables

optimizer = optim.SGD(model.parameters(), lr=0.025)  # <- optimizers
""",
            after="""
from torch import nn, optim

class SkipGram(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, sparse=True)
        self.contexts = nn.Embedding(vocabulary, width, padding_idx=0, sparse=True)

optimizer = optim.SGD(model.parameters(), lr=0.025)
""",
            parameters={"exact": True, "optimizer": "SGD"},
        ),
        Example(
            before="import torch\nitems = torch.nn.EmbeddingBag(n, 32, mode='sum')  # <- tables\n"
            "opt = torch.optim.Adagrad(net.parameters(), lr=0.1)  # <- optimizers\n",
            after="import torch\nitems = torch.nn.EmbeddingBag(n, 32, mode='sum', sparse=True)\n"
            "opt = torch.optim.Adagrad(net.parameters(), lr=0.1)\n",
            parameters={"exact": True, "optimizer": "Adagrad"},
        ),
        Example(
            before="import torch\nitems = torch.nn.Embedding(n, 32)  # <- tables\n"
            "opt = torch.optim.Adam(ps)  # <- optimizers\n",
            after="",
            parameters={"optimizer": "Adam"},
            advice="torch.optim.SparseAdam",
        ),
    )
    LEAVES_ALONE = tuple(
        Example(
            f"import torch\nitems = torch.nn.Embedding({given})  # <- tables\n"
            f"opt = torch.optim.SGD({settings})  # <- optimizers\n{more}",
            "",
            {"exact": True, "optimizer": "SGD", **parameters},
        )
        for given, settings, more, parameters in (
            ("n, 32", "net.parameters(), lr=0.1, weight_decay=1e-4", "", {}),
            ("n, 32", "net.parameters(), lr=0.1, fused=True", "", {}),
            ("n, 32", "net.parameters(), lr=0.1", "items.weight.register_hook(keep)\n", {}),
            ("n, 32", "net.parameters(), 0.1, 0.9", "", {}),
            ("n, 32", "net.parameters(), **settings", "", {}),
            ("n, 32", "groups, lr=0.1", "", {}),
            ("n, 32, max_norm=1.0", "net.parameters(), lr=0.1", "", {}),
            ("n, 32, None, 1.0", "net.parameters(), lr=0.1", "", {}),
            ("n, 32, mode='max'", "net.parameters(), lr=0.1", "", {}),
            ("n, 32, scale_grad_by_freq=True", "net.parameters(), lr=0.1", "", {}),
            ("n, 32", "net.parameters(), lr=0.1", "torch.nn.utils.clip_grad_norm_(ps, 1.0)\n", {}),
            ("n, 32", "net.parameters(), lr=0.1", "import lightning as L\n", {}),
            ("n, 32", "net.parameters(), lr=0.1", "net = torch.nn.parallel.DistributedDataParallel(net)\n", {}),
            ("n, 32", "net.parameters(), lr=0.1", "other = torch.optim.Adam(net.parameters())\n", {}),
            ("n, 32", "net.parameters(), lr=0.1", "", {"others": True}),
            ("n, 32", "net.parameters(), lr=0.1", "", {"exact": False, "optimizer": "Adam"}),
        )
    )


def _updating(optimizers: list[OptimizerInfo], tables: list[Tables]) -> OptimizerInfo | None:
    """The one that updates the tables; None where that cannot be told."""
    found = [each for each in optimizers if each.steps]
    if len(found) > 1:
        found = [each for each in found if any([table.rows, table.width] in each.matrices for table in tables)]
    return found[0] if len(found) == 1 else None


def _takes_none(optimizer: OptimizerInfo, tables: list[Tables]) -> bool:
    """Whether it holds none of the tables, as far as its largest parameters say, of which all are known."""
    shapes = [[each.rows, each.width] for each in tables]
    return 0 < len(optimizer.matrices) < MOST_MATRICES and not any(each in optimizer.matrices for each in shapes)


def _sites(optimizers: Iterable[OptimizerInfo]) -> tuple[Site, ...]:
    return tuple(each.site for each in optimizers if each.site is not None)


def _large(tables: Tables) -> bool:
    numbers = tables.rows * tables.width
    return numbers >= _LEAST_NUMBERS and tables.number * tables.rows >= _LEAST_ROWS_PER_LOOKUP * tables.lookups


def _sparse_s(tables: Tables, optimizer: str) -> float:
    """Seconds per step that these tables take with sparse gradients."""
    per_row, per_number = _COST_NS[optimizer]
    return tables.number * _COST_S + tables.lookups * (per_row + per_number * tables.width) / 1e9


def _freed_s(tables: Tables, optimizer: str) -> float:
    """Seconds per step that it takes to give back the memory of gradients as large as the tables, and the like."""
    size = tables.rows * tables.width * _FLOAT
    times = tables.gradients + _ON_ITS_WAY[optimizer] * tables.number
    return times * size * _FREED_BYTE_S if size > _FREED_FROM else 0.0


def _described(tables: list[Tables]) -> str:
    return ", ".join(
        f"{each.rows:,} x {each.width}" + (f", {each.number} of them" if each.number > 1 else "") for each in tables
    )


def _places(evidence: Evidence) -> tuple[tuple[Site, ...], bool]:
    """Where the classes of this run's models, and the script itself, make embeddings; whether each makes several.

    Where none of them does, what other modules of the script's own do so by a function.
    """
    record, files = evidence.record, model_files(evidence)
    own = {cls for model in record.models for cls in model.own} if record is not None else set()
    others = sorted({*record.modules} - {*files}) if record is not None else []
    for paths, classes in ((files, own), (others, set[str]())):
        found = [each for path in paths for each in _made_in(path, classes)]
        if found:
            break
    return tuple(sorted((site for site, _ in found), key=lambda site: (site.file, site.line))), all(
        several for _, several in found
    )


def _made_in(path: str, classes: set[str]) -> Iterator[tuple[Site, bool]]:
    """Where these classes of the file, and what is in it beside classes, make embeddings; whether several each."""
    try:
        tree = ast.parse(text_of(path))
    except (SyntaxError, ValueError):
        return
    holders: list[ast.AST] = [
        each for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and each.name in classes
    ]
    holders += [each for each in tree.body if not isinstance(each, ast.ClassDef)]
    looping = {
        each
        for node in ast.walk(tree)
        if isinstance(node, (ast.For, ast.ListComp, ast.GeneratorExp, ast.DictComp))
        for each in ast.walk(node)
    }
    # A function that is called several times makes several, too.
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call)]
    named = Counter(ast.unparse(each.func) for each in calls)
    named.update(ast.unparse(each.func) for each in calls if each in looping)
    helpers = [node for node in tree.body if isinstance(node, ast.FunctionDef) and named[node.name] > 1]
    looping |= {each for node in helpers for each in ast.walk(node)}
    for each in dict.fromkeys(each for holder in holders for each in ast.walk(holder)):
        if isinstance(each, ast.Call) and ast.unparse(each.func).rpartition(".")[2] in _NAMES:
            yield Site(path, each.lineno, each.col_offset, each.end_lineno, each.end_col_offset), each in looping


def _needs_dense(drafts: Drafts, path: str) -> str:
    """What in the file does not go with sparse gradients, as a clause; else empty."""
    draft = drafts[path]
    if re.search(r"clip_grad|\.grad\b|register_(post_accumulate_grad_)?hook", draft.module.code):
        return f"{path.rpartition('/')[2]} looks at gradients, which would be sparse"
    if framework := framework_used(draft):
        return f"{framework} may clip the gradients, or look at them, which would be sparse"
    if any(_SEVERAL.search(f"{last_part(call.func)}(") for call in draft.nodes(cst.Call)):
        return "several processes or devices may add up their gradients, which not everything does for sparse ones"
    return ""


def _plainly_made(call: cst.Call) -> bool:
    """``SGD(model.parameters(), lr=0.1)``: one group, and none of the settings that need dense gradients."""
    first = call.args[0].value if call.args else None
    named = {each.keyword.value for each in call.args if each.keyword is not None}
    plain = not has_starred(call) and not unpacked(call)
    plain = plain and m.matches(first or call, m.Call(func=m.Attribute(attr=m.Name("parameters")), args=[]))
    return plain and sum(each.keyword is None for each in call.args) <= _BY_POSITION and named <= _MAY_HAVE


def _given(call: cst.Call) -> bool:
    """Whether the embedding is made with what excludes sparse gradients, or may be: more than two sizes by position."""
    mode = argument(call, "mode")
    if mode is not None and not m.matches(mode.value, m.SimpleString()):
        return True
    if mode is not None and cst.ensure_type(mode.value, cst.SimpleString).evaluated_value not in ("sum", "mean"):
        return True
    if has_starred(call) or unpacked(call) or sum(each.keyword is None for each in call.args) > _BY_POSITION:
        return True
    return any(argument(call, name) is not None for name in ("max_norm", "scale_grad_by_freq"))
