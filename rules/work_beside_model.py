"""Most of a step is spent in one call beside model, loss, optimizer and loader."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.every import done_every
from advisor.edit.locate import code_at
from advisor.edit.python_loops.grown import joined_once
from advisor.edit.sources import text_of
from advisor.evidence import Change
from advisor.evidence.beside import (
    Beside,
    called_source,
    is_alone,
    line_of,
    lines_of,
    nodes_of,
    share_of_step,
    source_of,
)
from advisor.evidence.bindings import last_name, names_in
from advisor.evidence.facts import FORWARD, OTHER
from advisor.evidence.in_the_loss import is_between
from advisor.evidence.outside import updates_weights
from advisor.evidence.python_loops.rounds import scope_at
from advisor.fixes import edited, given_fix
from advisor.harness.layout import Site
from advisor.rule import (
    Advice,
    Argument,
    Example,
    Finding,
    Gain,
    Rule,
    Safety,
    at,
    epoch_steps,
    forward_sites,
    number_of,
)

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence

_LEAST = 0.25  # of the step; where what it does is wasted for sure …
_LEAST_WASTED = 0.15
_MANY_OPERATORS = 0.25  # of those that a step calls
# Of an undisturbed step: what takes that much more, in the one step or the few that have stacks, is not in each of them
# (1.77: a recording that is made for every eighth).
_LONGER_THAN_A_STEP = 1.25
_SAYS_MORE = 0.5  # of what a function takes: one that it calls and that takes so much is what it is about
# What is left of it: where an edit takes it away, where a cheaper way is known, and where that has yet to be found.
_LEFT_EDITED, _LEFT_KNOWN, _LEFT = 0.02, 0.05, 0.2
# What an environment is asked, by the names that gym gave them: the policy waits for what it answers.
_SIMULATES = ("step", "reset", "render")
# What shows it to somebody who looks on, by its name.
_DRAWS = re.compile(r"_*(render|plot|show|imshow|visuali[sz]e|display)(_|$)")
_SELDOM_DRAWN = (
    "Draw when somebody looks on, or every so many episodes: simulators mostly have an argument for it (render=False, "
    "render_mode=None)."
)
_OF_TRAINING = ("clip_grad_norm_", "clip_grad_value_")  # between backward and optimizer, and part of the step
# To wait is no work; where the step could go on meanwhile blocking-work-between-steps tells of it.
_WAITS = ("sleep", "recv", "recv_into", "getresponse", "communicate", "wait", "acquire")
_SAVES = ("save", "save_file", "save_state", "save_pretrained", "save_model", "save_checkpoint", "savez", "dump")
_OWN_NAME, _OF_A_CALL = re.compile(r"\bf[\"']|[\"'] %|\.format\("), 5  # lines
_SAVED = (
    "What is saved in each step is written over in the next: save every few hundred steps, or after an epoch whose "
    "measure on held-out samples is the best so far, and once at the end; torch.distributed.checkpoint.async_save "
    "writes beside the steps."
)
_EVERY = 50  # steps: how often what is already done every so many steps, and now in each, is done by the fix
_BASIS = (
    "what it takes, undisturbed; prior: a fiftieth of it is left where an edit takes it away, a twentieth where a "
    "cheaper way is known, else a fifth"
)

_GROWS = (
    "What is joined to all that came before copies all of it in each step, ever more: append() what each step gives to "
    "a list, and join the list once, after the loop."
)

# By how the call reads in the source: what does the same for less, by NumPy's and PyTorch's documentation.
_CHEAPER = (
    (
        r"\b(\w+) = (?:torch|np|numpy|pd)\.(?P<name>cat|concat|concatenate|vstack|hstack|append)\(\W*\1\b",
        _GROWS,
    ),
    (
        r"\b(?P<name>choice)\(.*\bp=",
        "Drawing with probabilities p adds all of them up in each call: keep cdf = numpy.cumsum(p) and look random "
        "numbers up in it, cdf.searchsorted(rng.random(k)), for all samples of a batch in one call.",
    ),
    (
        r"\b(?P<name>conv1d|conv2d|convolve|correlate)\(",
        "A convolution takes as many operations per value as its kernel is long: for hundreds of taps and more, "
        "multiply the spectra instead (torch.fft.rfft of both, zero-padded; torchaudio.functional.fftconvolve).",
    ),
    (
        r"\b(?P<name>roc_auc_score|average_precision_score|confusion_matrix|f1_score)\(",
        "A metric over all that was seen so far takes longer with each step: keep sums or a histogram of scores and "
        "add each batch to them, or compute it every so many steps.",
    ),
    (
        r"\b(?P<name>get_model|create_model|from_pretrained|load_from_checkpoint|load_model)\(",
        "A model that is made and loaded anew for each batch is the same each time: keep it (functools.cached_property "
        "for a property, functools.lru_cache for a function, or an attribute that __init__ sets).",
    ),
    (
        r"\[:[\w.]*\]\.(?P<name>copy)\(\)",
        "That copies all that there is, for each batch: take the rows that are drawn by their numbers, which copies "
        "these alone.",
    ),
    (
        r"\b(\w+)(?:, \w+)? = [^\n]*\b(?P<name>argsort|sort)\([^\n]*\n(?:[^\n]*\n)*?"
        r"[^\n]*(\b\1\.argsort\(|\bargsort\(\1\b|\(\1 == [^\n]*\)\.(nonzero|int\(\)\.argmax|argmax)\b|where\(\1 ==)",
        "The rank of one score is how many are larger: (scores > scores.gather(1, target[:, None])).sum(1) looks at "
        "each once, and sorts nothing; where the first k are wanted, torch.topk finds these alone.",
    ),
    (
        r"\b(?P<name>deepcopy)\(",
        "copy.deepcopy copies all there is, object by object: keep the tensors that are needed, and copy_() into them.",
    ),
)

# What draws items, by name, and from what.
_DRAWS_ITEMS = ("sample", "choice", "choices")
_DRAWN_FROM = re.compile(r"\b(?:sample|choices?)\((?:self\.)?(\w+)\b")
_LONG_DEQUE = 1000  # items: of fewer none is far from an end
_DEQUE = (
    "A deque has no index: it walks from its nearer end to each item that random.sample, or an index, asks for. Keep "
    "the items in a list, and overwrite the oldest when it is full (items[position % capacity] = item); or each field "
    "in a tensor of capacity rows, of which a tensor of indices takes a whole batch at once."
)

# Items that are drawn by their places on the last axis, as their names say.
_DRAWN_LAST = re.compile(r"^(\w+_)?(idx|idxs|ind|inds|indices|picked|chosen|places|sampled?)$")
_LAST_AXIS = (
    "What is drawn lies along the last axis there, so that each number of an item is in another place of the memory: "
    "keep the axis that is drawn from first, (capacity, ...), of which store[places] copies each item in one piece."
)

# A function that several others ask, so many at least, and what reads a file or what stands in it, by what libraries
# call it: what is always the same can be kept.
_CALLERS = 2
_READS = ("safe_load", "full_load", "unsafe_load", "load", "loads", "loadtxt", "genfromtxt", "read_csv", "read_json")
_READ_ONCE = (
    "It is given nothing, and reads the same each time, if nothing writes it meanwhile: read it once, as "
    "functools.lru_cache(maxsize=1) around the function does."
)

_READS_FILES = re.compile(r"open|imread|read|load|loadtxt|genfromtxt|memmap|loadmat|(read|load)_(wav|audio|image|file)")
_READ_AGAIN = (
    "It reads files: where the same come again, keep what it makes of each, by its path, as functools.lru_cache around "
    "the function does, or make the files so once, before the training."
)

_NPZ = re.compile(r"numpy.*npyio")  # the module of its open archives
_ARCHIVE = (
    "Whatever an open .npz is asked for it reads from its file anew, and whole (mmap_mode is ignored for it): read its "
    "arrays once, dict(numpy.load(path)), or keep .npy files, of which numpy.load(path, mmap_mode='r') reads only what "
    "is asked for."
)

# How much two boxes have in common, by what it is called or how it is computed.
_BOXES = re.compile(
    r"intersection over union|\b(\w+_)?(iou|nms)(_\w+)?\b|\bdef \w*suppress|non[-_ ]?max|jaccard"
    r"|\binter\w*\s*/\s*\(.*-\s*inter",
    re.IGNORECASE,
)
_ALL_BOXES = (
    "Boxes are compared by torchvision.ops.box_iou(a, b), all with all, and thinned out by "
    "torchvision.ops.batched_nms(boxes, scores, labels, limit), in compiled code."
)


class WorkBesideModel(Rule):
    """One function of the script's own takes most of each step, in no model, loss, optimizer or loader.

    Random draws that add their probabilities up again, a tensor that grows by each batch, an augmentation of whole
    batches on one way that costs too much, a metric over all history, a simulator: while it runs the model waits. The
    stacks of a few steps are followed from the loop inwards, for as long as one call takes most of what is beside the
    steps' own work, and the time is that share of the undisturbed step. So is a function without torch in it that
    several others ask, that the model's forward asks for (graphs put together in Python, files that are read again), or
    that draws while nobody looks on. Reported only where no other rule explains it.

    When not: it is what the step is for, and there is no cheaper way; even then it may run in other processes, or for
    many at once. A simulator that a library has, and the policy needs an answer of, is not reported, nor is what is
    made of the model's output for the loss of the same step, a matching, say.

    Source: PyTorch docs, ``torch.utils.data``, "Single- and Multi-process Data Loading"; NumPy docs,
    ``random.Generator.choice``.
    """

    id = "work-beside-model"
    title = "Take the work beside the model out of each step"
    safety = Safety.BEHAVIOUR
    fallback = True

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.device_is_gpu or not evidence.step_s:
            return
        told = list(self._of_one_place(evidence))
        if not told or (_is_vague(evidence) and not told[0].parameters["cheaper"]):
            inner = list(self._of_many_places(evidence, evidence.step_s))
            # Of a function by itself, which may be the whole loop, and one that it calls, the one that says more.
            least = _SAYS_MORE * max((float(each.evidence["share_of_step"] or 0.0) for each in told), default=0.0)
            told = [each for each in inner if float(each.evidence["share_of_step"] or 0.0) >= least] or told
        yield from told

    def _of_one_place(self, evidence: Evidence) -> Iterator[Finding]:
        found = evidence.beside
        if found is None or not evidence.step_s or found.calls in (*_OF_TRAINING, *_WAITS):
            return
        archive = _asks_archive(found)
        if evidence.breakdown.share(OTHER) * found.part < (_LEAST_WASTED if archive else _LEAST):
            return
        if not found.calls and found.operators >= _MANY_OPERATORS and updates_weights(source_of(found, text_of)):
            return  # an optimizer that is written out: fused-optimizer tells of it
        cheaper = _cheaper(found.calls, source_of(found, text_of), called_source(found, text_of))
        cheaper = _ARCHIVE if archive else cheaper or (_DEQUE if _walks_deque(found) else "")
        grows = _grows_at(found) if not found.calls and cheaper in ("", _GROWS) else 0
        if found.loops and not grows:
            return  # the lines of the loop that calls the model are many
        cheaper = _GROWS if grows else cheaper
        if not cheaper and evidence.trains and found.calls in _SAVES and _writes_over(line_of(found, text_of)):
            cheaper = _SAVED
        if not cheaper and found.calls in _SIMULATES:
            return  # nothing here makes a library's simulator faster
        if not cheaper and _is_between(evidence, found):
            return  # of what the model says in this step, for its loss
        share = share_of_step(evidence, found, cheaper == _GROWS)
        left = _LEFT_EDITED if cheaper == _GROWS else _LEFT_KNOWN if cheaper else _LEFT
        saved = share * evidence.step_s * (1.0 - left)
        site = Site(found.file, grows) if grows else line_of(found, text_of)
        site = Site(found.file, _item_at(found) or site.line) if archive else site
        what = f"{found.calls}, called at {at(site)}," if found.calls else f"{found.name}() ({at(site)})"
        what = f"What is joined at {at(site)} to all that came before" if grows else what
        what = f"What {found.name}() asks an open .npz for, at {at(site)}," if archive else what
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{what} takes {share:.0%} of each step, while model and optimizer wait.",
            gain=Gain.prior(evidence.what_if(Change(remove_host_s=saved)), _BASIS),
            evidence={"share_of_step": share, "work_s": share * evidence.step_s, "step_s": evidence.step_s},
            site=site,
            parameters={
                "name": found.calls or f"{found.name}()",
                "cheaper": cheaper,
                "within": lines_of(found, text_of) if not found.calls and found.line else range(0),
                "epoch": epoch_steps(evidence),
            },
        )

    def _of_many_places(self, evidence: Evidence, step_s: float) -> Iterator[Finding]:
        """A function that several others call, each for a short time, or that the model's forward does.

        Or one place, where no function takes most of what is beside the steps' own work, or only all the loop's does.
        """
        found, beside = evidence.scattered, evidence.beside
        alone = found is not None and found.callers < _CALLERS and not found.in_forward
        if found is None or (alone and beside is not None and not _is_vague(evidence)):
            return
        # Of one traced step; the others say how much there is of what computes nothing, and of what calls the model.
        most = evidence.breakdown.share(OTHER) + evidence.breakdown.share(FORWARD)
        share = min(found.share, most)
        if share < _LEAST or found.share > _LONGER_THAN_A_STEP:
            return
        again = found.in_forward and evidence.trains and _reads_file(Site(found.file, found.line))
        if found.in_forward and found.callers < _CALLERS and found.library and not again:
            return  # a library of compiled code that torch knows nothing of is part of the model
        draws = _DRAWS.match(found.name) is not None
        if any(name in _SIMULATES for name in found.around) and not draws:
            return
        site = Site(found.file, found.line)
        reads = found.library in _READS and not _takes_anything(site)
        cheaper = _READ_ONCE if reads else _SELDOM_DRAWN if draws else _READ_AGAIN if again else ""
        cheaper = cheaper or (_DEQUE if _indexes_deque(site) else _LAST_AXIS if _draws_from_last_axis(site) else "")
        saved = share * step_s * (1.0 - (_LEFT_KNOWN if cheaper and not again else _LEFT))
        way = f" by way of {found.around[0]}()" if len(found.around) > 1 else ""
        asked = f"asked by {found.callers} functions"
        if found.callers < _CALLERS:
            asked = "within the model's forward" if found.in_forward else "from one place"
        yield Finding(
            rule=self.id,
            title=self.title,
            summary=f"{found.name}() ({at(site)}) takes {share:.0%} of each step, in {found.calls:.3g} "
            f"call{'s' * (found.calls != 1)}, {asked}{way}, and computes nothing with torch.",
            gain=Gain.prior(evidence.what_if(Change(remove_host_s=saved)), _BASIS),
            evidence={"share_of_step": share, "work_s": share * step_s, "step_s": step_s},
            site=site,
            parameters={"name": f"{found.name}()", "cheaper": cheaper, "asked": True},
        )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        name, cheaper = (str(finding.parameters.get(key) or "") for key in ("name", "cheaper"))
        site, drafts = finding.site, Drafts(sources)
        asked, epoch = bool(finding.parameters.get("asked")), number_of(finding, "epoch")
        seldom = done_every(drafts, site, _EVERY, epoch=epoch) if site is not None and not asked else None
        if site is not None and seldom is not None:
            text = f"Call {name or 'this'} at {at(site)} every {_EVERY} steps only."
            return given_fix(drafts, drafts[site.file], seldom, str(_EVERY), text, text)
        why = "which of these gives the same results only its author can tell"
        if cheaper == _ARCHIVE:
            return Advice(cheaper, "how much of it fits into memory, and whether it is written to, its author can tell")
        if site is not None and cheaper == _GROWS:
            drafts = Drafts(sources)
            draft = drafts[site.file]
            there = code_at(draft, site.line)
            why = joined_once(draft, there) if there is not None else "its place in the source is unknown"
            if not why:
                return edited(
                    drafts, f"Keep what each step gives {at(site)} in a list, and join it once, behind the loop."
                )
        return Advice(
            f"Take {name or 'this call'} at {at(finding.site)} out of each step. {cheaper}".rstrip()
            + " Compute once, before the loop, what no step changes; for all samples of a batch in one call what is "
            "computed for each; and in a Dataset, so that DataLoader workers do it meanwhile, what does not depend on "
            "the model. Simulators can run for several episodes at once, or in other processes.",
            why,
        )

    EXAMPLES = (
        Example(
            before="import numpy as np\n\nlog = np.load(path, mmap_mode='r')\n\ndef draw(rows):\n"
            "    return {name: log[name][rows] for name in NAMES}  # <-\n",
            after="",
            parameters={"name": "__getitem__", "cheaper": _ARCHIVE},
            advice="dict(numpy.load(path))",
        ),
        Example(
            before="""
import torch

outputs = torch.empty(0, 10)
for x in loader:
    y = model(x)
    outputs = torch.cat([outputs, y.detach()])  # <-
print(outputs.mean())
""",
            after="""
import torch

outputs = torch.empty(0, 10)
outputs_parts = []
for x in loader:
    y = model(x)
    outputs_parts.append(y.detach().clone())
outputs = torch.cat([outputs, *outputs_parts])
print(outputs.mean())
""",
            parameters={"name": "cat", "cheaper": _GROWS},
        ),
        Example(
            before="import torch\n\nfor x in loader:\n    seen = torch.cat([seen, x])  # <-\n    log(seen.mean())\n",
            after="",
            parameters={"name": "cat", "cheaper": _GROWS},
            advice="append()",
        ),
        Example(
            before="""
HISTOGRAMS_EVERY = 1

def histograms(model):
    return [np.histogram(each.numpy(), 512) for each in model.parameters()]  # <-

for step, x in enumerate(loader):
    train(model, x)
    if step % HISTOGRAMS_EVERY == 0:
        rows.append(histograms(model))
""",
            after="""
HISTOGRAMS_EVERY = 50

def histograms(model):
    return [np.histogram(each.numpy(), 512) for each in model.parameters()]

for step, x in enumerate(loader):
    train(model, x)
    if step % HISTOGRAMS_EVERY == 0:
        rows.append(histograms(model))
""",
            parameters={"name": "histogram"},
        ),
        Example(
            before="def sample(self):\n    return self.draw(64)  # <-\n",
            after="",
            parameters={"name": "draw()"},
            advice="DataLoader workers",
        ),
    )
    LEAVES_ALONE = (Example("rows = simulate(policy)  # <-\n", ""),)


def _grows_at(found: Beside) -> int:
    """The function's own line that joins arrays to all before them by NumPy or pandas, of which traces say nothing."""
    nodes = nodes_of(found, text_of)
    lines = [
        each.lineno
        for each in nodes
        if isinstance(each, ast.Assign) and re.search(_CHEAPER[0][0].replace("torch|", ""), ast.unparse(each))
        if is_alone(nodes, each, found.loops)
    ]
    return lines[0] if len(lines) == 1 else 0


def _cheaper(calls: str, source: str, called: str = "") -> str:
    """What does the same for less as a call in `source`: of `calls` or, where that is unknown, of any that it has.

    `called`: the functions that it calls, as the source has them.
    """
    for written, text in _CHEAPER:
        if any(calls in ("", found["name"]) for found in re.finditer(written, source)):
            return text
    return _ALL_BOXES if _BOXES.search(f"{source}\n{called}") else ""


def _writes_over(site: Site) -> bool:
    """Whether what is saved on that line has one name: where that is put together each time all of it is kept."""
    lines = text_of(site.file).splitlines()[max(0, site.line - 1) : site.line + _OF_A_CALL]
    return bool(lines) and not _OWN_NAME.search("\n".join(lines))


def _walks_deque(found: Beside) -> bool:
    """Whether what takes the time draws items from a deque: one that the function's class, or its file, makes."""
    source = source_of(found, text_of) if found.calls in _DRAWS_ITEMS else ""
    return bool(source) and not _deques(found.file, found.line).isdisjoint(_DRAWN_FROM.findall(source))


def _draws_from_last_axis(site: Site) -> bool:
    """Whether the function that begins at `site` draws items by their places on the last axis, ``x[..., idx]``."""
    function = scope_at(text_of(site.file), site.line)
    nodes = list(ast.walk(function)) if function is not None else []
    loops = (each for each in nodes if isinstance(each, (ast.For, ast.comprehension)))
    counted = set[str]().union(*(names_in(each.target) for each in loops))
    for item in (each for each in nodes if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Load)):
        axes = item.slice.elts if isinstance(item.slice, ast.Tuple) else []
        whole = [ast.unparse(each) in (":", "...") for each in axes[:-1]]
        last = ast.unparse(axes[-1]) if axes else ""
        if whole and all(whole) and _DRAWN_LAST.match(last) and last not in counted:
            return True
    return False


def _indexes_deque(site: Site) -> bool:
    """Whether the function that begins at `site` takes items of a deque by their numbers, ``self.rows[i + k]``."""
    function = scope_at(text_of(site.file), site.line)
    if function is None:
        return False
    items = (each for each in ast.walk(function) if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Load))
    taken = {last_name(each.value) for each in items if names_in(each.slice)}  # [0] and [-1] are its ends
    return not taken.isdisjoint(_deques(site.file, site.line))


def _deques(file: str, line: int) -> set[str]:
    """The names that the class around a line of a file, or the file outside of classes, gives a deque."""
    tree = ast.parse(text_of(file))
    classes = [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]
    others = [each for each in classes if not each.lineno <= line <= (each.end_lineno or 0)]
    texts = (ast.unparse(each) for each in tree.body if each not in others)
    made = re.findall(r"\b(\w+)(?:: [^=\n]+)? = (?:\w+\.)?deque\((.*)", "\n".join(texts))
    sizes = {name: re.search(r"maxlen=(\d+)\b", given) for name, given in made}
    return {name for name, size in sizes.items() if size is None or int(size[1]) >= _LONG_DEQUE}


def _asks_archive(found: Beside) -> bool:
    """Whether what takes the time is an array of an archive of NumPy's, which it reads whenever it is asked for one."""
    return found.calls == "__getitem__" and _NPZ.search(found.called_file) is not None


def _item_at(found: Beside) -> int:
    """The first line of the function that asks for an item of something that has a name; 0 for none."""
    within = lines_of(found, text_of)
    nodes = ast.walk(ast.parse(text_of(found.file)))
    items = (each for each in nodes if isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Load))
    named = (each.lineno for each in items if isinstance(each.value, (ast.Name, ast.Attribute)))
    return min((line for line in named if line in within), default=0)


def _is_between(evidence: Evidence, found: Beside) -> bool:
    """Whether what takes the time is made of a forward's output, and goes into the loss of the same step."""
    forwards = [each.site for each in forward_sites(evidence)]
    files = {found.file, *(each.file for each in forwards)}
    called = {found.name, found.calls} - {""}
    lines = {file: {each.line for each in forwards if each.file == file} for file in sorted(files)}
    return any(is_between(text_of(file), called, lines[file]) for file in lines)


def _is_vague(evidence: Evidence) -> bool:
    """Whether what takes most is a function by itself, and none that it calls does."""
    return evidence.beside is not None and not evidence.beside.calls


def _reads_file(site: Site) -> bool:
    """Whether the function that begins at `site` reads a file, by the names of what it calls."""
    function = scope_at(text_of(site.file), site.line)
    if function is None or re.search(r"cache|memo", ast.unparse(function)):
        return False
    calls = (each.func for each in ast.walk(function) if isinstance(each, ast.Call))
    return any(_READS_FILES.fullmatch(last_name(each)) for each in calls)


def _takes_anything(site: Site) -> bool:
    """Whether the function that begins at `site` is given anything, as far as the source shows."""
    function = scope_at(text_of(site.file), site.line)
    return not isinstance(function, ast.FunctionDef) or bool(ast.unparse(function.args))
