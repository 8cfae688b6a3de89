"""What the making of a batch consists of, by the fetches that the harness looked at: shares, loops, and places."""

from __future__ import annotations

import ast
import glob
import linecache
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from advisor.evidence.bindings import bound, last_name, made_of, names_in
from advisor.evidence.facts import LoaderFacts
from advisor.evidence.loading.array_loops import computes_by_index
from advisor.evidence.whatif import Change
from advisor.harness.layout import FetchPart, Loader, Site

_SHRINKS = 2.0  # times fewer pixels: what comes before it does at least twice the work that is needed
# On a smaller picture these do something else: they reach as far as they did in pixels, or bring black corners in that
# a later crop would have cut off.
_BOUND_TO_SIZE = re.compile(r"Affine|Perspective|Elastic|Blur|Sharp|filter", re.IGNORECASE)
_NOISE = re.compile(r"Noise", re.IGNORECASE)  # where pixels are averaged later less of it is left; a part is alike
_TURNS = re.compile(r"Rotat|transpose", re.IGNORECASE)  # the same before and after the whole picture is made smaller
_RESIZES = re.compile(r"resize|thumbnail|interpolate|scale", re.IGNORECASE)
_CROPS = re.compile(r"crop|patch", re.IGNORECASE)
# Lines that do the same to each pixel, or turn the whole picture, by what they call.
_PIXELWISE = re.compile(
    r"rotate|transpose|flip|mirror|enhance|contrast|brightness|saturation|hue|gamma|colou?r|jitter|posterize|solarize|invert"
    r"|augment",
    re.IGNORECASE,
)
# What reads a whole file that it is given the name of.
_READS = re.compile(r"^(np|numpy|torch|pickle|joblib)\.load$|^(\w+\.)?(loadmat|read_\w+|loadtxt|genfromtxt)$")
# What decodes a file of a sample's own: a compressed archive, a picture, a recording.
_DECODES = re.compile(
    r"^(np|numpy|torch|nib|nibabel|torchaudio|librosa|sf|soundfile|wavfile)\.(load|read)$"
    r"|^(PIL\.)?Image\.open$|^(\w+\.)*(imread|imdecode|read_image|decode_image|decode_jpeg|decode_png|pil_loader)$"
)
AS_IT_IS = frozenset(("convert", "astype", "copy", "float", "numpy", "permute", "transpose", "contiguous", "resize"))
CASTS = re.compile(r"^(np|numpy|torch)\.(as)?(array|tensor|from_numpy|ascontiguousarray)$")
_STACKING = ("default_collate", "default_data_collator", "torch_default_data_collator")  # collate functions
_NO_WORK = ("torch", "numpy", "tqdm")  # of a library: what moves arrays, or shows how far something is
_MOST_FILES = 100  # are read to find where a transform is made
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# CPU seconds per second of a fetch: below it mostly waits, and computing less would not help. Low, because a worker
# that shares its core with the step or with another worker waits for the core, too.
_COMPUTES = 0.3
_NEARLY_ALL = 0.8  # share of a statement's seconds that one in a function which it calls takes
# Iterators of a loader of which each gives a batch or two, of so many times as many that it could give.
_LEAST_ITERATORS, _FEW, _UNUSED = 6, 2.5, 4.0


@dataclass(frozen=True)
class Early:
    """A transform that runs before the picture gets smaller: ``kept`` of its pixels are left by ``smaller``."""

    part: FetchPart
    smaller: FetchPart
    kept: float


def share(loader: Loader, part: FetchPart) -> float:
    """Share of the fetch that `part` takes, by the fetches that were looked at."""
    return min(1.0, part.seconds / loader.look_s) if loader.look_s else 0.0


def stacks(loader: Loader) -> bool:
    """Whether its collate function stacks the samples, which must be of one shape."""
    return loader.collate.rpartition(".")[2] in _STACKING


def begins_anew(loader: Loader) -> bool:
    """Whether the script makes an iterator for each batch or two, of a loader that has many more to give."""
    if loader.epochs < _LEAST_ITERATORS or not loader.batches:
        return False
    taken = loader.fetched / loader.epochs  # of each iterator
    return taken < _FEW and loader.batches >= _UNUSED * taken


def computes(facts: LoaderFacts) -> bool:
    """Whether making a batch computes; what waits for a disk or a server does not."""
    fetch_s = facts.single_s or facts.fetch_s  # where the CPU's time is that of one thread
    return bool(fetch_s and facts.fetch_cpu_s is not None and facts.fetch_cpu_s >= _COMPUTES * fetch_s)


def without(facts: LoaderFacts, saved: float, other_s: float = 0.0) -> Change:
    """The change that takes the share `saved` from making a batch, and so many seconds from the rest of a step."""
    wall, cpu = facts.fetch_s or 0.0, facts.fetch_cpu_s
    return Change(
        fetch_s=wall * (1.0 - saved),
        fetch_cpu_s=None if cpu is None else cpu * (1.0 - saved),
        loader=facts.index,
        remove_host_s=other_s,
    )


def early(loader: Loader, kind: str = "transform") -> tuple[Early, ...]:
    """Transforms that a later one makes do at least twice the work; none that shrinks itself or depends on size.

    With `kind` "line" the lines of the function that makes a sample, where it changes the picture by itself.
    """
    chain = [part for part in loader.parts if part.kind == kind and part.pixels_in]
    found = []
    for part in chain:
        said = _said(part)
        if part.pixels_out * _SHRINKS <= part.pixels_in or _BOUND_TO_SIZE.search(said):
            continue
        if kind == "line" and not (_rebinds(said) and _PIXELWISE.search(said)):
            continue
        later = [other for other in chain if _follows(other, part) and 0 < other.pixels_out < other.pixels_in]
        if _TURNS.search(said):
            later = [other for other in later if _RESIZES.search(_said(other)) and not _CROPS.search(_said(other))]
        if _NOISE.search(said):
            later = [other for other in later if not _RESIZES.search(_said(other))]
        smaller = min(later, key=lambda other: other.pixels_out, default=None)
        if smaller is not None and smaller.pixels_out * _SHRINKS <= part.pixels_in:
            found.append(Early(part, smaller, smaller.pixels_out / part.pixels_in))
    return tuple(found)


def _follows(other: FetchPart, part: FetchPart) -> bool:
    """Whether `other` works on what `part` has made."""
    if part.kind != "line":
        return other.order > part.order
    if (other.site.file, other.name) != (part.site.file, part.name) or other.site.line <= part.site.line:
        return False
    said = _said(other)
    shrinks = _RESIZES.search(said) or _CROPS.search(said)
    return bool(shrinks) and _rebinds(said) == _rebinds(_said(part))


def _rebinds(line: str) -> str:
    """The variable of ``image = f(image)``; "" for another line: the picture before it may be needed later."""
    try:
        (statement,) = ast.parse(line.strip()).body
    except (SyntaxError, ValueError):
        return ""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return ""
    name = statement.targets[0].id
    reads = {node.id for node in ast.walk(statement.value) if isinstance(node, ast.Name)}
    return name if len(statement.targets) == 1 and name in reads else ""


def _said(part: FetchPart) -> str:
    """What a part is called; of a line, what is written there."""
    return linecache.getline(part.site.file, part.site.line) if part.kind == "line" else part.name


def is_users(file: str) -> bool:
    """Whether the user may have written this file: not an installed one."""
    return bool(file) and not any(part in file for part in _INSTALLED)


def longest_statement(loader: Loader) -> FetchPart | None:
    """The line that takes most of making a sample, with the seconds of the whole statement that it belongs to.

    A loop is one statement: its seconds are spread over the lines of its body. Where one statement of a function that
    it calls takes nearly all of it, that one.
    """
    outer, inside = (_longest(loader, kind) for kind in ("line", "inside"))
    if outer is None or inside is None or inside.seconds < _NEARLY_ALL * outer.seconds:
        return outer
    return inside


def _longest(loader: Loader, kind: str) -> FetchPart | None:
    return max(by_statement(loader, kind), key=lambda part: part.seconds, default=None)


def by_statement(loader: Loader, kind: str) -> list[FetchPart]:
    """The lines of a kind, with the seconds of the whole statement each, and of a statement's lines the longest."""
    lines = [part for part in loader.parts if part.kind == kind and part.site.line]
    by_statement: dict[tuple[str, int], list[FetchPart]] = {}
    statements = {file: _statements(file) for file in {part.site.file for part in lines}}
    for part in lines:
        around = [first for first, last in statements[part.site.file] if first <= part.site.line <= last]
        by_statement.setdefault((part.site.file, max(around, default=part.site.line)), []).append(part)
    found = []
    for parts in by_statement.values():
        longest = max(parts, key=lambda part: part.seconds)
        found.append(FetchPart(kind, longest.name, longest.site, sum(part.seconds for part in parts)))
    return found


def _statements(file: str) -> list[tuple[int, int]]:
    """(first, last) lines of the statements at the top of each function in `file`."""
    tree = parsed(file)
    functions = ast.walk(tree) if tree is not None else ()
    return [
        (statement.lineno, statement.end_lineno or statement.lineno)
        for function in functions
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for statement in function.body
    ]


def looped(loader: Loader) -> tuple[FetchPart, float] | None:
    """The longest loop over pieces of an array in what makes a sample, and the share of the fetch that such loops take.

    None where there is none. Where one function takes nearly all of the longest line, its own loops.
    """
    outer, inside = _longest(loader, "line"), by_statement(loader, "inside")
    if outer is None:
        return None
    # What the lines of that function take was timed in another fetch: of the longest line's time they have their share.
    lines = inside or [outer]
    loops = [part for part in lines if computes_by_index("".join(linecache.getlines(part.site.file)), part.site.line)]
    if not loops:
        return None
    within = sum(part.seconds for part in loops) / max(1e-9, sum(part.seconds for part in lines))
    return max(loops, key=lambda part: part.seconds), share(loader, outer) * within


def read_again(line: FetchPart) -> tuple[str, bool]:
    """What a line of a dataset reads that is the same for every sample: ``self.archive['x']``, ``np.load(self.path)``.

    A member of an ``.npz`` is read and decompressed each time it is asked for (``numpy.lib.npyio.NpzFile``). A call
    that reads a file is the same for all where none of its arguments comes from the function's own or its variables.
    True with what holds many samples, for one of which all of it is read: ``np.load(shards[i])['x'][row]``.
    "" where nothing of that kind is seen.
    """
    tree = parsed(line.site.file)
    for cls in ast.walk(tree) if tree is not None else ():
        if not isinstance(cls, ast.ClassDef):
            continue
        archives = {
            target.attr
            for node in ast.walk(cls)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and called(node.value) == "load"
            for target in node.targets
            if isinstance(target, ast.Attribute) and ast.unparse(node.value.func).split(".")[0] in ("np", "numpy")
        }
        for function in cls.body:
            if isinstance(function, ast.FunctionDef) and function.lineno <= line.site.line <= (
                function.end_lineno or 0
            ):
                same = _same_each_time(function, line.site.line, archives, set_later(cls))
                if same or line.kind == "inside":  # whose parameters, of a sample or of a file, are not known
                    return same, False
                return _for_one_row(function, line.site.line), True
    return "", False


def member_of(site: Site, key: str) -> str:
    """How a line writes the member `key` that it asks an archive for: ``shard["images"]``."""
    tree = parsed(site.file)
    for node in ast.walk(tree) if tree is not None else ():
        if not isinstance(node, ast.Subscript) or not node.lineno <= site.line <= (node.end_lineno or node.lineno):
            continue
        if isinstance(node.slice, ast.Constant) and node.slice.value == key:
            return ast.unparse(node)
    return f"the member {key!r}"


def reads_a_file(line: FetchPart) -> str:
    """What a line of a dataset reads and decodes a file with, and does nothing else with it: ``Image.open``.

    Itself, a member of the archive that it opened, or the picture, which PIL decodes when it is asked for the pixels.
    "" where nothing of that kind is seen, or what is done besides may be different each time (an augmentation).
    """
    tree = parsed(line.site.file)
    around = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, ast.FunctionDef) and node.lineno <= line.site.line <= (node.end_lineno or 0)
    ]
    function = max(around, key=lambda node: node.lineno, default=None)
    if function is None:
        return ""
    pairs = list(bound(ast.walk(function)))
    opened = {ast.unparse(target): name for target, value in pairs if (name := _decoder(value))}
    values = [value for _, value in pairs]
    values += [node.value for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]
    there = (each for each in values if each.lineno <= line.site.line <= (each.end_lineno or each.lineno))
    return next((found for each in there if (found := _decoded(each, opened))), "")


def _decoded(value: ast.expr, opened: Mapping[str, str]) -> str:
    """The decoder of a value that is what was decoded, at most cut, cast or laid out otherwise."""
    while True:
        found = _decoder(value)
        if found:
            return found
        if isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
            member = opened.get(ast.unparse(value.value))
            if member is not None and isinstance(value.slice.value, str):
                return member
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in AS_IT_IS:
            if value.func.attr == "convert" and ast.unparse(value.func.value) in opened:
                return opened[ast.unparse(value.func.value)]
            value = value.func.value
        elif isinstance(value, ast.Call) and CASTS.search(ast.unparse(value.func)) and value.args:
            value = value.args[0]
        elif isinstance(value, ast.Subscript):
            value = value.value
        else:
            return ""


def _decoder(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Call) or any("BytesIO" in ast.unparse(each) for each in node.args):
        return ""
    name = ast.unparse(node.func)
    return name if _DECODES.search(name) else ""


def call_of_a_library(line: FetchPart) -> str:
    """What a line calls of an installed library other than torch and NumPy: ``signal.resample_poly``; "" for none.

    Of several the outermost.
    """
    tree = parsed(line.site.file)
    if tree is None:
        return ""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {(each.asname or each.name).partition(".")[0]: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            modules |= {each.asname or each.name: node.module for each in node.names}
    folder = os.path.dirname(line.site.file)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.lineno <= line.site.line <= (node.end_lineno or node.lineno):
            name = ast.unparse(node.func)
            module = modules.get(name.partition(".")[0], "").partition(".")[0]
            own = any(os.path.exists(os.path.join(folder, each)) for each in (f"{module}.py", module))
            if module and not own and module not in _NO_WORK and module not in sys.stdlib_module_names:
                return name
    return ""


def set_later(cls: ast.ClassDef) -> set[str]:
    """The attributes that methods other than ``__init__`` give values."""
    return {
        node.attr
        for function in cls.body
        if isinstance(function, ast.FunctionDef) and function.name != "__init__"
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }


def own_parameters(function: ast.FunctionDef) -> set[str]:
    """The names of a method's parameters, its object aside."""
    static = any(names_in(each) & {"staticmethod"} for each in function.decorator_list)
    args = function.args
    return {each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)[0 if static else 1 :]}


def _for_one_row(function: ast.FunctionDef, line: int) -> str:
    """The member of an archive that the function opens itself, read by a line for the part that its parameter says.

    ``archive["x"][i % 9]``, or ``x = archive["x"]`` and further on ``x[:, top : top + 9]``.
    """
    pairs = list(bound(ast.walk(function)))
    own = own_parameters(function)
    opened = {ast.unparse(target): _rows(value, pairs, own) for target, value in pairs if _opens(value)}
    subscripts = [node for node in ast.walk(function) if isinstance(node, ast.Subscript)]
    for member in subscripts:
        by_name = isinstance(member.slice, ast.Constant) and isinstance(member.slice.value, str)
        if not by_name or not member.lineno <= line <= (member.end_lineno or member.lineno):
            continue
        archive = member.value
        rows = _rows(archive, pairs, own) if _opens(archive) else opened.get(ast.unparse(archive), set())
        whole = _given_whole(member, pairs)
        for part in subscripts:
            takes = bool(names_in(part.slice) & rows)
            one = part.value is member and not isinstance(part.slice, (ast.Slice, ast.Tuple))
            if takes and (one or names_in(part.value) & whole):
                return ast.unparse(member)
    return ""


def _rows(value: ast.expr, pairs: list[tuple[ast.expr, ast.expr]], own: set[str]) -> set[str]:
    """The names that say which part of the file a sample is; none where each sample has a file of its own.

    ``path, row = self.items[i]`` has the row beside the file.
    """
    if not _of_each(value, pairs, own):
        return made_of(own, pairs)
    unpacked = [names_in(target) for target, _ in pairs if isinstance(target, ast.Tuple)]
    beside = set[str]().union(*(names - names_in(value) for names in unpacked if names & names_in(value)))
    return made_of(beside, pairs) if beside else set()


def _given_whole(member: ast.expr, pairs: list[tuple[ast.expr, ast.expr]]) -> set[str]:
    """The names that stand for all of `member`, or for what is computed of all of it."""
    first = set[str]()
    for target, value in (one for pair in pairs for one in _one_by_one(*pair)):
        if any(node is member for node in ast.walk(value)) and not _takes_part(value, member):
            first |= names_in(target)
    return made_of(first, [pair for pair in pairs if not any(isinstance(n, ast.Subscript) for n in ast.walk(pair[1]))])


def _one_by_one(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """``a, b = c, d`` as ``a = c`` and ``b = d``."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _takes_part(value: ast.expr, member: ast.expr) -> bool:
    """Whether something is picked from `member` within `value`."""
    others = [node for node in ast.walk(value) if isinstance(node, ast.Subscript) and node is not member]
    return any(any(inner is member for inner in ast.walk(node.value)) for node in others)


def _opens(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) in ("np.load", "numpy.load")


def _of_each(value: ast.expr, pairs: list[tuple[ast.expr, ast.expr]], own: set[str]) -> bool:
    """Whether each sample has a file of its own: ``paths[i]`` for the function's own parameter, or a name made so."""
    made = [each for target, each in pairs if names_in(target) & names_in(value) and not _opens(each)]
    return any(
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and node.slice.id in own
        for each in (value, *made)
        for node in ast.walk(each)
    )


def _same_each_time(function: ast.FunctionDef, line: int, archives: set[str], later: set[str]) -> str:
    own = own_parameters(function)
    own |= {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(function):
        if not isinstance(node, ast.expr) or not node.lineno <= line <= (node.end_lineno or node.lineno):
            continue
        if isinstance(node, ast.Subscript):
            by_name = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
            if by_name and isinstance(node.value, ast.Attribute) and node.value.attr in archives:
                return ast.unparse(node)
        if not isinstance(node, ast.Call) or not node.args or any(names_in(part) & own for part in node.args):
            continue
        if {each.attr for part in node.args for each in ast.walk(part) if isinstance(each, ast.Attribute)} & later:
            continue
        if _READS.search(ast.unparse(node.func)):
            return ast.unparse(node)
    return ""


def made_at(files: Sequence[str], part: FetchPart, names: Sequence[str]) -> Site | None:
    """Where the script makes the transform `part`: alone by its name, or in a list of these very transforms.

    `names` are the classes of the whole chain. None where there is no such call, or more than one.
    """
    name = part.name.rpartition(".")[2]
    calls = [(file, call) for file in dict.fromkeys(files) for call in _calls(file, name)]
    if len(calls) > 1:
        chains = [(file, chain) for file in dict.fromkeys(files) for chain in _chains(file, names)]
        calls = [(file, chain[part.order]) for file, chain in chains if part.order < len(chain)]
        calls = [(file, call) for file, call in calls if called(call) == name]
    if len(calls) != 1:
        return None
    file, call = calls[0]
    return Site(file, call.lineno, call.col_offset, call.end_lineno, call.end_col_offset)


def mentions(file: str, name: str) -> bool:
    """Whether `file` calls something of that name."""
    return any(True for _ in _calls(file, name))


def beside(files: Sequence[str]) -> list[str]:
    """The Python files in the folders of `files` and right below them: the modules of a script that has some."""
    found = []
    for folder in dict.fromkeys(os.path.dirname(file) for file in files):
        for pattern in ("*.py", os.path.join("*", "*.py")):
            found += sorted(glob.glob(os.path.join(glob.escape(folder), pattern)))
    return [file for file in dict.fromkeys(found) if is_users(file) and file not in files][:_MOST_FILES]


def _calls(file: str, name: str) -> Iterator[ast.Call]:
    tree = parsed(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and called(node) == name:
            yield node


def _chains(file: str, names: Sequence[str]) -> Iterator[list[ast.Call]]:
    """The lists in `file` whose elements are calls of exactly these names."""
    tree = parsed(file)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, (ast.List, ast.Tuple)):
            calls = [each for each in node.elts if isinstance(each, ast.Call)]
            if len(calls) == len(node.elts) and [called(each) for each in calls] == list(names):
                yield calls


def called(call: ast.Call) -> str:
    """The last name of what is called: ``ColorJitter`` of ``transforms.ColorJitter(0.3)``."""
    return last_name(call.func)


def parsed(file: str) -> ast.Module | None:
    """The source of a file; None where it cannot be read."""
    try:
        with open(file, encoding="utf-8") as source:
            return ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return None
