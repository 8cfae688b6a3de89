"""What a dataset reads of the rows of a DataFrame of pandas, one by one: which columns, by what expressions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from advisor.edit.callers import own_method
from advisor.edit.changes import settings_of
from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.locate import innermost_at
from advisor.edit.modules import TooManyFilesError, with_word
from advisor.edit.names import last_part, own_attribute
from advisor.edit.scopes import assignments, is_literal, is_target, self_assignments, string_value, variables

AS_ARRAY = ("values", "to_numpy")
_BY_POSITION, _BY_LABEL = ("iloc", "iat"), ("loc", "at")
# Of a row of pandas these are something else than a column of that name.
_OF_SERIES = frozenset((
    "name", "index", "dtype", "size", "shape", "ndim", "array", "T", "str", "dt", "cat", "flags", "attrs", "axes",
    "empty", "hasnans", "is_unique", "nbytes",
))  # fmt: skip
UNKNOWN = "what is taken out of a row there cannot be told from the source"


@dataclass
class Column:
    """What is read of a row: `code` makes the array of all rows, and `node` is to be its row instead."""

    node: cst.BaseExpression
    code: str
    name: str
    several: bool | None  # columns; None where that is not known
    of_row: bool  # which has made one type of all columns'


class UnclearError(Exception):
    """Why the edit cannot be written, as a clause."""


class Reads:
    """The ``columns`` that ``__getitem__`` reads at `lines`, and the statements that only name a ``row`` of them.

    Raises UnclearError where some of what pandas is asked there is not understood, or may change.
    """

    def __init__(self, drafts: Drafts, draft: Draft, lines: Sequence[int], facts: Collection[str]) -> None:
        self._drafts, self._draft, self._lines, self._facts = drafts, draft, lines, facts
        methods = {innermost_at(draft, cst.FunctionDef, line) for line in lines}
        method = methods.pop() if len(methods) == 1 else None
        holder = draft.parent(draft.parent(method) or method) if method is not None else None
        if method is None or method.name.value != "__getitem__" or not isinstance(holder, cst.ClassDef):
            raise UnclearError("pandas is not asked in __getitem__ alone")
        self._method, self._holder = method, holder
        params = method.params.params
        made = own_method(holder, "__init__")
        if len(params) != 2 or made is None or not isinstance(made.body, cst.IndentedBlock):
            raise UnclearError("the class has no __init__ in which the arrays could be made")
        if draft.nodes(cst.Return, made):
            raise UnclearError("its __init__ may return early")
        self._made, self.last = made, made.body.body[-1]
        self.index = params[1].name.value
        same = (f"{self.index}.tolist()", f"{self.index}.item()", f"int({self.index})")
        for value in assignments(draft, self.index, method):
            if value is None or draft.code(value) not in same:
                raise UnclearError("the number of the row is changed before")
        for other in draft.nodes(cst.ClassDef):
            if any(last_part(base.value) == holder.name.value for base in other.bases):
                raise UnclearError(f"{other.name.value}, which is derived from it, may change what it has")
        self.columns: list[Column] = []
        self.rows: list[Statement] = []
        self._seen: list[cst.CSTNode] = []  # what asked pandas
        self._frames: set[str] = set()
        self._read()

    # What is read.

    def _read(self) -> None:
        draft = self._draft
        done: set[cst.CSTNode] = set()
        for item in draft.nodes(cst.Subscript, self._method):
            if done.isdisjoint((item, *draft.ancestors(item))) and self._item(item):
                done.add(item)
        if not self.columns:
            raise UnclearError(UNKNOWN)
        for line in self._lines:
            spans = [draft.position(each) for each in self._seen]
            if not any(span.start.line <= line <= span.end.line for span in spans):
                raise UnclearError(f"what line {line} asks of pandas cannot be told from the source")
        for name in sorted(self._frames):
            self._check_frame(name)

    def _item(self, item: cst.Subscript) -> bool:
        """Whether an item is a row, or a column's value in one; then it is taken down."""
        taken, slices = item.value, [each.slice for each in item.slice]
        if not m.matches(slices[0], m.Index(m.Name(self.index))):
            return False
        indexer = taken.attr.value if isinstance(taken, cst.Attribute) else ""
        by_label, base = indexer not in _BY_POSITION, taken
        if isinstance(taken, cst.Attribute) and indexer in (*_BY_POSITION, *_BY_LABEL):
            base = taken.value
        elif not self._asks(item) or len(slices) != 1:  # no column's own item
            return False
        whole = own_attribute(base)
        frame = whole or (own_attribute(base.value) if isinstance(base, (cst.Subscript, cst.Attribute)) else "")
        column = self._column_of(base) if not whole else None
        if not whole and column is None:
            return False
        if by_label and "labels" in self._facts:
            raise UnclearError("rows are taken by labels, which are not their numbers")
        self._frames.add(frame)
        self._seen.append(item)
        if column is not None:
            self._take(item, *column, of_row=False)
        elif len(slices) == 2:
            self._take(item, *self._of_two(base, slices[1], by_label), of_row=False)
        elif base is taken:  # a Series that the object has
            self._take(item, f"{self._draft.code(base)}.to_numpy()", frame, False, of_row=False)
        else:
            self._row(item, base, frame)
        return True

    def _asks(self, node: cst.CSTNode) -> bool:
        span = self._draft.position(node)
        return any(span.start.line <= line <= span.end.line for line in self._lines)

    def _column_of(self, node: cst.BaseExpression) -> tuple[str, str, bool | None] | None:
        """Code, name and whether there are several, of ``self.frame["x"]`` or ``self.frame.x``."""
        if isinstance(node, cst.Subscript) and own_attribute(node.value):
            key = _key_of(node)
            return self._keyed(self._draft.code(node.value), key) if key is not None else None
        if isinstance(node, cst.Attribute) and own_attribute(node.value) and node.attr.value not in _OF_SERIES:
            self._check_dates(node.attr.value)
            return f"{self._draft.code(node)}.to_numpy()", node.attr.value, False
        return None

    def _keyed(self, frame: str, key: cst.BaseExpression) -> tuple[str, str, bool | None]:
        """The same for a frame's columns of a key that is the same for all rows."""
        name, several = self._key(key)
        return f"{frame}[{self._draft.code(key)}].to_numpy()", name, several

    def _key(self, key: cst.BaseExpression) -> tuple[str, bool | None]:
        """What a key may be called, and whether it is of several columns. Raises UnclearError where it may change."""
        text = string_value(key)
        if text:
            self._check_dates(text)
            return text, False
        self._check_dates("")
        for name in self._draft.nodes(cst.Name, key):
            above = self._draft.parent(name)
            attribute = isinstance(above, cst.Attribute) and above.attr is name
            if attribute or name.value == "self":
                continue
            local = variables(self._draft, name.value, self._method)
            if any(is_target(self._draft, one) for one in local) or name.value == self.index:
                raise UnclearError(UNKNOWN)
        for attribute_read in self._draft.nodes(cst.Attribute, key):
            self._check_only_made(own_attribute(attribute_read))
        if isinstance(key, cst.List):
            return "columns", True
        if not isinstance(key, (cst.Name, cst.Attribute)):
            raise UnclearError(UNKNOWN)
        return (key.attr if isinstance(key, cst.Attribute) else key).value.lower(), None

    def _of_two(self, base: cst.BaseExpression, which: cst.BaseSlice, by_label: bool) -> tuple[str, str, bool | None]:
        """``frame.iloc[i, 1:]``, ``frame.loc[i, "x"]``."""
        frame = self._draft.code(base)
        if by_label and isinstance(which, cst.Index):
            return self._keyed(frame, which.value)
        self._check_dates("")
        if isinstance(which, cst.Index) and is_literal(which.value):
            number = self._draft.code(which.value)
            name = "last_column" if number == "-1" else f"column_{number}"
            return f"{frame}.iloc[:, {number}].to_numpy()", name, False
        ends = (which.lower, which.upper, which.step) if isinstance(which, cst.Slice) else None
        if by_label or ends is None or not all(each is None or is_literal(each) for each in ends):
            raise UnclearError(UNKNOWN)
        return f"{frame}.iloc[:, {self._draft.code(which)}].to_numpy()", "columns", True

    def _row(self, row: cst.Subscript, base: cst.BaseExpression, frame: str) -> None:
        """All that is read of one row."""
        draft = self._draft
        uses: list[cst.BaseExpression] = [row]
        above = draft.parent(row)
        if isinstance(above, (cst.Assign, cst.AnnAssign)):
            statement = draft.statement(row)
            target = above.targets[0].target if isinstance(above, cst.Assign) else above.target
            several = isinstance(above, cst.Assign) and len(above.targets) != 1
            if statement is None or several or not isinstance(target, cst.Name):
                raise UnclearError(UNKNOWN)
            uses = [each for each in variables(draft, target.value, self._method) if each is not target]
            if any(is_target(draft, each) for each in uses):
                raise UnclearError(UNKNOWN)
            self.rows.append(statement)
        for use in uses:
            self._seen.append(use)
            self._use(use, base, frame)

    def _use(self, use: cst.BaseExpression, base: cst.BaseExpression, frame: str) -> None:
        draft, above = self._draft, self._draft.parent(use)
        code = draft.code(base)
        if self._is_column(frame):
            self._take(use, f"{code}.to_numpy()", frame, False, of_row=False)
            return
        if above is not None and is_target(draft, above):
            raise UnclearError(UNKNOWN)
        if isinstance(above, cst.Subscript) and above.value is use:
            key, part = _key_of(above), above.slice[0].slice
            if len(above.slice) == 1 and isinstance(part, cst.Slice):
                self._take(above, *self._of_two(base, part, by_label=False), of_row=True)
                return
            if key is not None and (string_value(key) or not is_literal(key)):
                self._take(above, *self._keyed(code, key), of_row=True)
                return
        if isinstance(above, cst.Attribute) and above.value is use:
            called = draft.parent(above)
            is_method = isinstance(called, cst.Call) and called.func is above
            if above.attr.value in AS_ARRAY:
                self._check_dates("")
                self._take(use, f"{code}.to_numpy()", frame, True, of_row=False)  # of one type, as a row's
                return
            if not is_method and above.attr.value not in _OF_SERIES:
                self._check_dates(above.attr.value)
                self._take(above, f"{code}.{above.attr.value}.to_numpy()", above.attr.value, False, of_row=True)
                return
        raise UnclearError(UNKNOWN)

    def _take(self, node: cst.BaseExpression, code: str, name: str, several: bool | None, *, of_row: bool) -> None:
        if self._may_be_left_out(node) and self._made_for_several():
            raise UnclearError("not every sample reads each column, and another table may not have it")
        self.columns.append(Column(node, code, name, several, of_row))

    def _is_column(self, name: str) -> bool:
        """Whether ``self.name`` is a column of a frame: ``self.late = frame["late"]``."""
        values = self_assignments(self._draft, self._made, name)
        keys = [_key_of(each) if isinstance(each, cst.Subscript) else None for each in values]
        return bool(keys) and all(key is not None and string_value(key) for key in keys)

    # What may not be.

    def _may_be_left_out(self, node: cst.CSTNode) -> bool:
        """Whether the method may return without reading it."""
        for above in self._draft.ancestors(node):
            if above is self._method:
                break
            if isinstance(above, (cst.If, cst.IfExp, cst.Try, cst.BooleanOperation)):
                return True
        line = self._draft.line(node)
        early = [each for each in self._draft.nodes(cst.Return, self._method) if self._draft.line(each) < line]
        return bool(early)

    def _made_for_several(self) -> bool:
        """Whether the script may make several datasets of the class, one of another table than that of this run."""
        name, made = self._holder.name.value, 0
        try:
            for user in with_word(self._drafts, self._draft, name):
                made += [last_part(each.func) for each in user.nodes(cst.Call)].count(name)
        except TooManyFilesError:
            return True
        return made > 1

    def _check_dates(self, column: str) -> None:
        """An array has a date as NumPy's, a row as pandas'; with "" any column may be meant."""
        if any(each == f"date {column}" or (not column and each.startswith("date ")) for each in self._facts):
            raise UnclearError("an array of dates gives others than a row of pandas does")

    def _check_only_made(self, name: str) -> None:
        """Raises UnclearError unless ``self.name`` gets its value in ``__init__`` or in the class alone."""
        inside = self_assignments(self._draft, self._made, name)
        if name and (len(self_assignments(self._draft, self._holder, name)) != len(inside) or len(inside) > 1):
            raise UnclearError(f"self.{name} may change")

    def _check_frame(self, name: str) -> None:
        self._check_only_made(name)
        if not self_assignments(self._draft, self._made, name):
            raise UnclearError(f"where self.{name} comes from cannot be told from the source")
        for function in self._holder.body.body:
            if function is self._made:
                continue
            for each in self._draft.nodes(cst.Attribute, function):
                if own_attribute(each) == name and self._changes(each):
                    raise UnclearError(f"self.{name} may change")
        if settings_of(self._drafts, self._draft, name):
            raise UnclearError(f"something else may set {name}")

    def _changes(self, read: cst.BaseExpression) -> bool:
        """Whether an item of what is read there is set, or it is changed in place."""
        node: cst.CSTNode = read
        for above in self._draft.ancestors(read):
            if isinstance(above, (cst.Subscript, cst.Attribute)) and above.value is node:
                node = above
                continue
            if isinstance(above, cst.Call) and above.func is node:
                return any(arg.keyword is not None and arg.keyword.value == "inplace" for arg in above.args)
            break
        return node is not read and is_target(self._draft, node)


def _key_of(item: cst.Subscript) -> cst.BaseExpression | None:
    """``k`` of ``x[k]``; None for a part, or for several."""
    index = item.slice[0].slice
    return index.value if len(item.slice) == 1 and isinstance(index, cst.Index) else None
