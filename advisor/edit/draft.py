"""``Draft``: one file while it is being edited, as a LibCST tree with changes pending on its nodes.

Changes are functions from the updated node to its replacement, applied innermost first, so that an argument inside
a call inside a statement that gets wrapped in a ``with`` can all change in one edit; what nothing changed is
printed as it was. Statements inserted or wrapped are kept per block, and never shift each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar, cast

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, ParentNodeProvider, PositionProvider

from advisor.edit.origins.settings import SettingsDraft
from advisor.edit.patch import Edit
from advisor.edit.sources import Source, Sources
from advisor.errors import AdvisorError

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Block = cst.Module | cst.IndentedBlock
Change = Callable[[cst.CSTNode], cst.CSTNode]
_Node = TypeVar("_Node", bound=cst.CSTNode)


@dataclass
class _Wrap:
    first: Statement
    last: Statement
    header: str


class _Tree:
    """All nodes below a root in the order of the text: LibCST finds a node's children slowly, so that is done once."""

    def __init__(self, root: cst.CSTNode) -> None:
        self.order: list[cst.CSTNode] = []
        self.starts: dict[cst.CSTNode, int] = {}
        self.ends: dict[cst.CSTNode, int] = {}  # where in the order what lies below a node ends
        self._places: dict[type[cst.CSTNode], list[int]] = {}
        todo: list[tuple[cst.CSTNode, bool]] = [(root, False)]
        while todo:
            node, done = todo.pop()
            if done:
                self.ends[node] = len(self.order)
                continue
            self.starts[node] = len(self.order)
            self.order.append(node)
            todo.append((node, True))
            todo.extend((child, False) for child in reversed(node.children))

    def nodes(self, kind: type[_Node], within: cst.CSTNode | None) -> list[_Node]:
        """Those of a kind, below `within` and itself, or all."""
        places = self._places.get(kind)
        if places is None:
            places = self._places[kind] = [at for at, node in enumerate(self.order) if isinstance(node, kind)]
        if within is not None:
            first = bisect_left(places, self.starts[within])
            places = places[first : bisect_left(places, self.ends[within], first)]
        return [cast(_Node, self.order[at]) for at in places]


@dataclass(frozen=True)
class _Parsed:
    module: cst.Module
    tree: _Tree
    positions: Mapping[cst.CSTNode, CodeRange]
    parents: Mapping[cst.CSTNode, cst.CSTNode]


@lru_cache(maxsize=32)  # each finding makes drafts of its own; their nodes never change
def _parsed(text: str) -> _Parsed:
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    positions, parents = wrapper.resolve(PositionProvider), wrapper.resolve(ParentNodeProvider)
    return _Parsed(wrapper.module, _Tree(wrapper.module), positions, parents)


class Draft:
    """One source file and the changes asked for so far. Raises AdvisorError for a file that does not parse."""

    def __init__(self, source: Source) -> None:
        self.source = source
        try:
            parsed = _parsed(source.text)
        except cst.ParserSyntaxError as error:
            raise AdvisorError(
                f"{source.path} does not parse as Python (line {error.raw_line}); does it run by itself?"
            ) from None
        self._tree = parsed.tree
        self.module = parsed.module
        self._positions = parsed.positions
        self._parents = parsed.parents
        self._changes: dict[cst.CSTNode, list[Change]] = {}
        self._before: dict[cst.CSTNode, list[str]] = {}
        self._after: dict[cst.CSTNode, list[str]] = {}
        self._wraps: list[_Wrap] = []
        self._removed: dict[cst.CSTNode, bool] = {}  # whether its comments go with it
        self.lines = source.text.split("\n")

    # Where things are -----------------------------------------------------------------------------------------

    def position(self, node: cst.CSTNode) -> CodeRange:
        """Lines from 1, columns from 0 in characters."""
        return self._positions[node]

    def line(self, node: cst.CSTNode) -> int:
        return self.position(node).start.line

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around `node`, from the inside out."""
        above = self.parent(node)
        while above is not None:
            yield above
            above = self.parent(above)

    def nodes(self, kind: type[_Node], within: cst.CSTNode | None = None) -> list[_Node]:
        """All nodes of one kind in the order of the text, in the file or below `within`."""
        tree = self._tree
        if within is not None and within not in tree.ends:
            tree, within = _Tree(within), None  # an expression that was parsed apart
        return tree.nodes(kind, within)

    def has(self, node: cst.CSTNode) -> bool:
        """Whether the node stands in this file."""
        return node in self._tree.ends

    def code(self, node: cst.CSTNode) -> str:
        """The source of a node."""
        return self.module.code_for_node(node)

    def statement(self, node: cst.CSTNode) -> Statement | None:
        """The innermost statement around `node` that stands in a block of its own lines.

        None for one on the line of its ``if …:``, and for a line of several statements (``a = 1; b = 2``) that
        nothing can be put between.
        """
        for candidate in (node, *self.ancestors(node)):
            if isinstance(candidate, (cst.SimpleStatementSuite, cst.Lambda)):
                return None
            if isinstance(candidate, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
                if isinstance(candidate, cst.SimpleStatementLine) and len(candidate.body) != 1:
                    return None
                return candidate if isinstance(self.parent(candidate), (cst.Module, cst.IndentedBlock)) else None
        return None

    def block(self, statement: cst.CSTNode) -> Block | None:
        """The block that holds a statement."""
        above = self.parent(statement)
        return above if isinstance(above, (cst.Module, cst.IndentedBlock)) else None

    def siblings(self, statement: cst.CSTNode) -> list[Statement]:
        """All statements of the block that holds `statement`."""
        block = self.block(statement)
        return [cast(Statement, each) for each in block.body] if block is not None else []

    def function(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The function around `node`; None at module or class level."""
        for above in self.ancestors(node):
            if isinstance(above, cst.FunctionDef):
                return above
        return None

    def function_line(self, node: cst.CSTNode) -> int:
        """Where the function around `node` begins, decorators included, as Python counts its first line; 0 for none."""
        function = self.function(node)
        return 0 if function is None else min([self.line(function), *map(self.line, function.decorators)])

    def enclosing_class(self, node: cst.CSTNode) -> cst.ClassDef | None:
        for above in self.ancestors(node):
            if isinstance(above, cst.ClassDef):
                return above
        return None

    def loop(self, node: cst.CSTNode) -> cst.For | cst.While | None:
        """The innermost loop around `node` within its function."""
        for above in self.ancestors(node):
            if isinstance(above, (cst.For, cst.While)):
                return above
            if isinstance(above, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
                return None
        return None

    # Changes -----------------------------------------------------------------------------------------------------

    def change(self, node: cst.CSTNode, change: Callable[[_Node], cst.CSTNode]) -> None:
        """Have `node` replaced by what `change` makes of it, after the changes inside it and earlier ones of it."""
        self._changes.setdefault(node, []).append(cast(Change, change))

    def replace(self, node: cst.CSTNode, code: str) -> None:
        """Have an expression replaced by the one that `code` says."""
        new = cst.parse_expression(code, self.module.config_for_parsing)
        self.change(node, lambda _: new)

    def insert_before(self, statement: Statement, *lines: str) -> None:
        """Put statements, one text each, in front of `statement`, below the comments and blank lines above it."""
        self._before.setdefault(statement, []).extend(lines)

    def insert_after(self, statement: Statement, *lines: str) -> None:
        self._after.setdefault(statement, []).extend(lines)

    def wrap(self, first: Statement, last: Statement, header: str) -> None:
        """Put the statements from `first` to `last` of one block into ``header:`` (without the colon)."""
        self._wraps.append(_Wrap(first, last, header))

    def remove(self, statement: Statement, comments: bool = True) -> None:
        """Have a statement removed, with the comments right above it, which are about it; without `comments` they stay.

        What stands above a blank line stays in any case.
        """
        self._removed[statement] = comments

    @property
    def changed(self) -> bool:
        return bool(self._changes or self._before or self._after or self._wraps or self._removed)

    def render(self) -> str:
        """The new text. Raises AdvisorError if it is no Python, which would be a fault of the edit."""
        new = self.module.visit(_Apply(self))
        text = new.code
        try:
            compile(text, self.source.path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise AdvisorError(f"the edit of {self.source.path} would not parse: {error}") from None
        return text

    def statements(self, *lines: str) -> list[Statement]:
        """Parse statements with the file's own indentation and line ends."""
        config = self.module.config_for_parsing
        parsed: list[Statement] = []
        for line in lines:
            module = cst.parse_module(line + "\n", config)
            body = list(module.body)
            body[0] = body[0].with_changes(leading_lines=(*module.header, *body[0].leading_lines))
            parsed.extend(body)
        return parsed


class _Apply(cst.CSTTransformer):
    """Applies a draft's pending changes in one pass, leaves first."""

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self._draft = draft

    def on_leave(self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT) -> cst.CSTNodeT:
        updated: cst.CSTNode = updated_node
        if isinstance(original_node, (cst.Module, cst.IndentedBlock)):
            assert isinstance(updated, (cst.Module, cst.IndentedBlock))
            body = self._body(original_node, updated)
            if body is not None:
                updated = updated.with_changes(body=body)
        for change in self._draft._changes.get(original_node, ()):
            updated = change(updated)
        return cast(cst.CSTNodeT, updated)

    def _body(self, original: Block, updated: Block) -> list[Statement] | None:
        draft = self._draft
        pairs = list(zip(original.body, updated.body, strict=True))
        touched = draft._before.keys() | draft._after.keys() | draft._removed.keys()
        wraps = [wrap for wrap in draft._wraps if any(wrap.first is old for old, _ in pairs)]
        if not wraps and not any(old in touched for old, _ in pairs):
            return None
        body: list[Statement] = []
        inner: list[Statement] | None = None
        wrap: _Wrap | None = None
        left: list[cst.EmptyLine] = []  # above a statement that was removed
        for old, item in pairs:
            new = cast(Statement, item)
            first = isinstance(original, cst.Module) and not body and not inner and old is not pairs[0][0]
            if old in draft._removed:
                left += self._lines_left(old, new)
            elif left or first:
                new, left = self._below(left, new, first), []
            if wrap is None:
                wrap = next((each for each in wraps if each.first is old), None)
                inner = [] if wrap is not None else None
            into = inner if inner is not None else body
            into.extend(self._with_neighbours(old, new))
            if wrap is not None and wrap.last is old:
                body.append(self._wrapped(wrap.header, inner or []))
                wrap = inner = None
        if wrap is not None:
            raise AdvisorError("an edit wraps statements of different blocks")
        return body or draft.statements("pass")

    def _with_neighbours(self, old: cst.CSTNode, new: Statement) -> list[Statement]:
        draft = self._draft
        before = draft.statements(*draft._before.get(old, ()))
        after = draft.statements(*draft._after.get(old, ()))
        if old in draft._removed:
            return [*before, *after]
        if before:
            # Comments and blank lines above the statement belong above what is put in front of it.
            before[0] = before[0].with_changes(leading_lines=new.leading_lines)
            new = new.with_changes(leading_lines=())
        return [*before, new, *after]

    def _lines_left(self, old: cst.CSTNode, removed: Statement) -> list[cst.EmptyLine]:
        """Of the lines above a statement that is removed those that are not about it: down to the last blank one."""
        lines = list(removed.leading_lines)
        while self._draft._removed[old] and lines and lines[-1].comment is not None:
            lines.pop()
        return lines

    def _below(self, lines: list[cst.EmptyLine], statement: Statement, first: bool) -> Statement:
        """The statement with such lines above its own; `first`: all before it in the module is removed."""
        own = list(statement.leading_lines)
        if own and not any(line.comment for line in lines):
            lines = []  # one blank line is enough
        lines = [*lines, *own]
        while first and not self._draft.module.header and lines and lines[0].comment is None:
            lines.pop(0)  # no file begins with a blank line
        return statement.with_changes(leading_lines=lines)

    def _wrapped(self, header: str, body: list[Statement]) -> Statement:
        (outer,) = self._draft.statements(f"{header}:\n    pass")
        lines = body[0].leading_lines if body else ()
        first = body[0].with_changes(leading_lines=())
        block = cst.IndentedBlock(body=[first, *body[1:]])
        return outer.with_changes(body=block, leading_lines=lines)


class Drafts:
    """The drafts of one edit, a file each; :meth:`edit` makes them one :class:`Edit`."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._drafts: dict[str, Draft] = {}
        self._settings: dict[str, SettingsDraft] = {}

    def settings(self) -> list[SettingsDraft]:
        """The drafts of the settings files that the script read, those that can be read and are the user's own."""
        for path in self.sources.settings:
            if path not in self._settings and self.sources.has(path) and self.sources.editable(path):
                try:
                    self._settings[path] = SettingsDraft(self.sources.source(path))
                except AdvisorError:  # broken, or of a kind of its own: nothing is changed there
                    continue
        return list(self._settings.values())

    def __getitem__(self, path: str) -> Draft:
        """The draft of a file. Raises AdvisorError when it cannot be read or does not parse."""
        source = self.sources.source(path)
        if source.path not in self._drafts:
            self._drafts[source.path] = Draft(source)
        return self._drafts[source.path]

    def edit(self, summary: str) -> Edit | None:
        """All pending changes as one edit; None when nothing changes or a changed file is not the user's own."""
        before: dict[str, Source] = {}
        after: dict[str, Source] = {}
        drafts: dict[str, Draft | SettingsDraft] = {**self._drafts, **self._settings}
        for path, draft in drafts.items():
            if not draft.changed:
                continue
            if not self.sources.editable(path):
                return None
            text = draft.render()
            if text != draft.source.text:
                before[path] = draft.source
                after[path] = Source(path, text, draft.source.encoding, draft.source.bom)
        return Edit(before, after, summary) if after else None
