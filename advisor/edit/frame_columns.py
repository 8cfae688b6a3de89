"""Rows that a dataset takes out of a DataFrame of pandas one by one: from arrays of its columns instead, made once.

``row = self.frame.iloc[i]`` makes a Series of each row, and ``row[columns]`` another one; ``self.values[i]`` of
``self.values = self.frame[columns].to_numpy()`` is a view of a row, or one of its numbers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from advisor.edit.callers import own_method
from advisor.edit.changes import settings_of
from advisor.edit.draft import Draft, Drafts, Statement
from advisor.edit.names import all_names, full_name, last_part
from advisor.edit.scopes import assignments, is_literal, is_target, self_assignments, string_value, variables

_BY_POSITION, _BY_LABEL = ("iloc", "iat"), ("loc", "at")
# Of a row of pandas these are something else than a column of that name.
_OF_SERIES = frozenset((
    "name", "index", "dtype", "size", "shape", "ndim", "array", "T", "str", "dt", "cat", "flags", "attrs", "axes",
    "empty", "hasnans", "is_unique", "nbytes",
))  # fmt: skip
_AS_ARRAY = ("values", "to_numpy")
_TO_LIST = ("tolist", "to_list")
# What makes numbers, or an array, of what a row has, whatever type that is of.
_CONVERT = ("float", "int", "str", "bool", "list", "numpy.float32", "numpy.float64", "numpy.int64", "numpy.int32")
_MAKE = ("torch.tensor", "torch.as_tensor", "numpy.array", "numpy.asarray")  # with dtype=
_TENSORS = re.compile(r"torch\.(Float|Long|Double|Half|Int|Bool)Tensor$")
_COPY = ("torch.tensor", "numpy.array")
_TYPED = ("float", "long", "double", "half", "int", "bool", "to", "type", "astype")
_UNKNOWN = "what is taken out of a row there cannot be told from the source"


@dataclass
class _Column:
    """What is read of a row: `code` makes the array of all rows, and `node` is to be its row instead."""

    node: cst.BaseExpression
    code: str
    name: str
    several: bool | None  # columns; None where that is not known
    of_row: bool  # which has made one type of all columns'


@dataclass
class _Found:
    columns: list[_Column] = field(default_factory=list)
    rows: list[Statement] = field(default_factory=list)  # that only name a row
    seen: list[cst.CSTNode] = field(default_factory=list)  # what asked pandas
    frames: set[str] = field(default_factory=set)


class _UnclearError(Exception):
    """Why the edit cannot be written, as a clause."""


def keep_columns(drafts: Drafts, draft: Draft, lines: Sequence[int], facts: Collection[str]) -> str:
    """Have the class keep the columns that its ``__getitem__`` reads at `lines`, and read those; else why not.

    `facts` is what was seen of the tables (:attr:`advisor.harness.layout.Loader.frames`).
    """
    try:
        reader = _Reader(drafts, draft, lines, facts)
        reader.read()
        reader.write()
    except _UnclearError as why:
        return str(why)
    return ""


class _Reader:
    def __init__(self, drafts: Drafts, draft: Draft, lines: Sequence[int], facts: Collection[str]) -> None:
        self._drafts, self._draft, self._lines, self._facts = drafts, draft, lines, facts
        methods = {self._method_at(line) for line in lines}
        method = methods.pop() if len(methods) == 1 else None
        holder = draft.parent(draft.parent(method) or method) if method is not None else None
        if method is None or method.name.value != "__getitem__" or not isinstance(holder, cst.ClassDef):
            raise _UnclearError("pandas is not asked in __getitem__ alone")
        self._method, self._holder = method, holder
        params = method.params.params
        made = own_method(holder, "__init__")
        if len(params) != 2 or made is None or not isinstance(made.body, cst.IndentedBlock):
            raise _UnclearError("the class has no __init__ in which the arrays could be made")
        if draft.nodes(cst.Return, made):
            raise _UnclearError("its __init__ may return early")
        self._made, self._last = made, made.body.body[-1]
        self._index = params[1].name.value
        same = (f"{self._index}.tolist()", f"{self._index}.item()", f"int({self._index})")
        for value in assignments(draft, self._index, method):
            if value is None or draft.code(value) not in same:
                raise _UnclearError("the number of the row is changed before")
        for other in draft.nodes(cst.ClassDef):
            if any(last_part(base.value) == holder.name.value for base in other.bases):
                raise _UnclearError(f"{other.name.value}, which is derived from it, may change what it has")
        self._found = _Found()

    def _method_at(self, line: int) -> cst.FunctionDef | None:
        position = self._draft.position
        around = [
            each
            for each in self._draft.nodes(cst.FunctionDef)
            if position(each).start.line <= line <= position(each).end.line
        ]
        return max(around, key=lambda each: position(each).start.line, default=None)

    # What is read.

    def read(self) -> None:
        """Find all that is read of rows. Raises _UnclearError where some of it is not understood."""
        draft = self._draft
        done: set[cst.CSTNode] = set()
        for item in draft.nodes(cst.Subscript, self._method):
            if done.isdisjoint((item, *draft.ancestors(item))) and self._item(item):
                done.add(item)
        if not self._found.columns:
            raise _UnclearError(_UNKNOWN)
        for line in self._lines:
            spans = [draft.position(each) for each in self._found.seen]
            if not any(span.start.line <= line <= span.end.line for span in spans):
                raise _UnclearError(f"what line {line} asks of pandas cannot be told from the source")
        for name in self._found.frames:
            self._check_frame(name)

    def _item(self, item: cst.Subscript) -> bool:
        """Whether an item is a row, or a column's value in one; then it is taken down."""
        taken, slices = item.value, [each.slice for each in item.slice]
        if not m.matches(slices[0], m.Index(m.Name(self._index))):
            return False
        indexer = taken.attr.value if isinstance(taken, cst.Attribute) else ""
        by_label, base = indexer not in _BY_POSITION, taken
        if isinstance(taken, cst.Attribute) and indexer in (*_BY_POSITION, *_BY_LABEL):
            base = taken.value
        elif not self._asks(item) or len(slices) != 1:  # no column's own item
            return False
        whole = self._own(base)
        frame = whole or (self._own(base.value) if isinstance(base, (cst.Subscript, cst.Attribute)) else "")
        column = self._column_of(base) if not whole else None
        if not whole and column is None:
            return False
        if by_label and "labels" in self._facts:
            raise _UnclearError("rows are taken by labels, which are not their numbers")
        self._found.frames.add(frame)
        self._found.seen.append(item)
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

    def _own(self, node: cst.CSTNode) -> str:
        """``frame`` of ``self.frame``."""
        own = isinstance(node, cst.Attribute) and m.matches(node.value, m.Name("self"))
        return cst.ensure_type(node, cst.Attribute).attr.value if own else ""

    def _column_of(self, node: cst.BaseExpression) -> tuple[str, str, bool | None] | None:
        """Code, name and whether there are several, of ``self.frame["x"]`` or ``self.frame.x``."""
        if isinstance(node, cst.Subscript) and self._own(node.value):
            key = _key_of(node)
            return self._keyed(self._draft.code(node.value), key) if key is not None else None
        if isinstance(node, cst.Attribute) and self._own(node.value) and node.attr.value not in _OF_SERIES:
            self._check_dates(node.attr.value)
            return f"{self._draft.code(node)}.to_numpy()", node.attr.value, False
        return None

    def _keyed(self, frame: str, key: cst.BaseExpression) -> tuple[str, str, bool | None]:
        """The same for a frame's columns of a key that is the same for all rows."""
        name, several = self._key(key)
        return f"{frame}[{self._draft.code(key)}].to_numpy()", name, several

    def _key(self, key: cst.BaseExpression) -> tuple[str, bool | None]:
        """What a key may be called, and whether it is of several columns. Raises _UnclearError where it may change."""
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
            if any(is_target(self._draft, one) for one in local) or name.value == self._index:
                raise _UnclearError(_UNKNOWN)
        for attribute_read in self._draft.nodes(cst.Attribute, key):
            self._check_only_made(self._own(attribute_read))
        if isinstance(key, cst.List):
            return "columns", True
        if not isinstance(key, (cst.Name, cst.Attribute)):
            raise _UnclearError(_UNKNOWN)
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
            raise _UnclearError(_UNKNOWN)
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
                raise _UnclearError(_UNKNOWN)
            uses = [each for each in variables(draft, target.value, self._method) if each is not target]
            if any(is_target(draft, each) for each in uses):
                raise _UnclearError(_UNKNOWN)
            self._found.rows.append(statement)
        for use in uses:
            self._found.seen.append(use)
            self._use(use, base, frame)

    def _use(self, use: cst.BaseExpression, base: cst.BaseExpression, frame: str) -> None:
        draft, above = self._draft, self._draft.parent(use)
        code = draft.code(base)
        if self._is_column(frame):
            self._take(use, f"{code}.to_numpy()", frame, False, of_row=False)
            return
        if above is not None and is_target(draft, above):
            raise _UnclearError(_UNKNOWN)
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
            if above.attr.value in _AS_ARRAY:
                self._check_dates("")
                self._take(use, f"{code}.to_numpy()", frame, True, of_row=False)  # of one type, as a row's
                return
            if not is_method and above.attr.value not in _OF_SERIES:
                self._check_dates(above.attr.value)
                self._take(above, f"{code}.{above.attr.value}.to_numpy()", above.attr.value, False, of_row=True)
                return
        raise _UnclearError(_UNKNOWN)

    def _take(self, node: cst.BaseExpression, code: str, name: str, several: bool | None, *, of_row: bool) -> None:
        self._found.columns.append(_Column(node, code, name, several, of_row))

    def _is_column(self, name: str) -> bool:
        """Whether ``self.name`` is a column of a frame: ``self.late = frame["late"]``."""
        values = self_assignments(self._draft, self._made, name)
        keys = [_key_of(each) if isinstance(each, cst.Subscript) else None for each in values]
        return bool(keys) and all(key is not None and string_value(key) for key in keys)

    # What may not be.

    def _check_dates(self, column: str) -> None:
        """An array has a date as NumPy's, a row as pandas'; with "" any column may be meant."""
        if any(each == f"date {column}" or (not column and each.startswith("date ")) for each in self._facts):
            raise _UnclearError("an array of dates gives others than a row of pandas does")

    def _check_only_made(self, name: str) -> None:
        """Raises _UnclearError unless ``self.name`` gets its value in ``__init__`` or in the class alone."""
        inside = self_assignments(self._draft, self._made, name)
        if name and (len(self_assignments(self._draft, self._holder, name)) != len(inside) or len(inside) > 1):
            raise _UnclearError(f"self.{name} may change")

    def _check_frame(self, name: str) -> None:
        self._check_only_made(name)
        if not self_assignments(self._draft, self._made, name):
            raise _UnclearError(f"where self.{name} comes from cannot be told from the source")
        for function in self._holder.body.body:
            if function is self._made:
                continue
            for each in self._draft.nodes(cst.Attribute, function):
                if self._own(each) == name and self._changes(each):
                    raise _UnclearError(f"self.{name} may change")
        if settings_of(self._drafts, self._draft, name):
            raise _UnclearError(f"something else may set {name}")

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

    # The edit.

    def write(self) -> None:
        """Ask for the changes. Raises _UnclearError where a type may become another."""
        draft, names = self._draft, dict[str, str]()
        taken = all_names(draft)
        for each in self._found.columns:
            if each.of_row and "upcast" in self._facts and not self._is_typed(each.node):
                raise _UnclearError("a row makes one type of its columns' several, which its arrays would keep")
            if each.code not in names:
                names[each.code] = _fresh(f"{_identifier(each.name)}_values", taken)
        for each in self._found.columns:
            self._replace(each, f"self.{names[each.code]}[{self._index}]")
        for statement in self._found.rows:
            draft.remove(statement)
        if not isinstance(self._last, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
            raise _UnclearError(_UNKNOWN)
        draft.insert_after(self._last, *(f"self.{name} = {code}" for code, name in names.items()))

    def _replace(self, column: _Column, code: str) -> None:
        """Have the array's row read where pandas' was, a copy of it where it would be handed on."""
        draft, node = self._draft, column.node
        if column.several is False:
            draft.replace(node, code)
            return
        end: cst.BaseExpression = node
        converted: cst.Call | None = None  # by .astype() of pandas
        typed = ""  # by .to_numpy() itself
        while isinstance(above := draft.parent(end), cst.Attribute) and above.value is end:
            method = draft.parent(above)
            called = method if isinstance(method, cst.Call) and method.func is above else None
            if above.attr.value in _AS_ARRAY:
                end = called or above
                typed = self._type_of(called) if called is not None else ""
                break
            if called is None or above.attr.value not in ("astype", *_TO_LIST):
                raise _UnclearError(_UNKNOWN)
            converted = end = called
        copied = converted is not None or self._call_of(end) in (*_COPY, *_CONVERT)
        copied = copied or bool(_TENSORS.search(self._call_of(end)))
        taken_out = isinstance(above, cst.Attribute) and above.attr.value in _AS_ARRAY
        if column.several is None and not (taken_out or copied or self._call_of(end) in _MAKE):
            raise _UnclearError(_UNKNOWN)
        astype = draft.parent(end)  # of the array that .values gives
        if taken_out and isinstance(astype, cst.Attribute) and astype.attr.value in ("astype", "copy", *_TO_LIST):
            copied = True
        if typed:
            code = f"{code}.astype({typed})"
        elif not copied:
            code = f"{code}.copy()"
        if converted is None:
            draft.replace(end, code)
            return
        if typed:
            raise _UnclearError(_UNKNOWN)
        draft.replace(node, code)
        if end is not converted:  # .astype(…).values
            draft.change(end, lambda updated: _without(updated))

    def _type_of(self, call: cst.Call) -> str:
        """The type that ``.to_numpy(…)`` is given."""
        if not call.args:
            return ""
        (arg, *more) = call.args
        if more or arg.star or (arg.keyword is not None and arg.keyword.value != "dtype"):
            raise _UnclearError(_UNKNOWN)
        return self._draft.code(arg.value)

    def _call_of(self, node: cst.BaseExpression) -> str:
        """The full name of what is called with it as the first argument; "" for nothing."""
        above = self._draft.parent(node)
        call = self._draft.parent(above) if isinstance(above, cst.Arg) else None
        if not isinstance(call, cst.Call) or call.args[0] is not above:
            return ""
        return full_name(self._draft, call.func)

    def _is_typed(self, node: cst.BaseExpression) -> bool:
        """Whether what is read there is given a type of its own."""
        draft = self._draft
        end: cst.BaseExpression = node
        while isinstance(above := draft.parent(end), cst.Attribute) and above.value is end:
            called = draft.parent(above)
            if above.attr.value == "astype":
                return True
            if above.attr.value not in _AS_ARRAY:
                return False
            if isinstance(called, cst.Call) and called.func is above:
                if called.args:
                    return True
                end = called
            else:
                end = above
        name = self._call_of(end)
        if name in _CONVERT or _TENSORS.search(name):
            return True
        if name not in _MAKE:
            return False
        call = cst.ensure_type(draft.parent(draft.parent(end) or end) or end, cst.Call)
        if any(arg.keyword is not None and arg.keyword.value == "dtype" for arg in call.args):
            return True
        then = draft.parent(call)
        return isinstance(then, cst.Attribute) and then.value is call and then.attr.value in _TYPED


def _without(node: cst.CSTNode) -> cst.CSTNode:
    """``x`` of ``x.values`` and of ``x.to_numpy()``."""
    inner = node.func if isinstance(node, cst.Call) else node
    return cst.ensure_type(inner, cst.Attribute).value


def _key_of(item: cst.Subscript) -> cst.BaseExpression | None:
    """``k`` of ``x[k]``; None for a part, or for several."""
    index = item.slice[0].slice
    return index.value if len(item.slice) == 1 and isinstance(index, cst.Index) else None


def _identifier(name: str) -> str:
    found = re.sub(r"\W+", "_", name).strip("_").lower()
    return found if found and not found[0].isdigit() else f"column_{found}".rstrip("_")


def _fresh(wanted: str, taken: set[str]) -> str:
    name, number = wanted, 2
    while name in taken:
        name, number = f"{wanted}{number}", number + 1
    taken.add(name)
    return name
