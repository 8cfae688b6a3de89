"""Gradients that a backward computes and the script drops unread: a critic's, in the step of what it judges.

The generator's loss goes through the discriminator, whose weights get gradients on the way; the discriminator's own
``zero_grad()`` drops them. So do an actor's loss and its critic, an image that is optimized and the network that
describes it.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby, islice
from types import ModuleType
from typing import Any

from ..layout import DiscardedGradients, GradientRun, Site
from ..patches import Patch
from ..places import is_users, site_of, user_frames
from .autograd_graph import AutogradGraph, leaves_beside, read_by_hooks
from .followers import Followers
from .gradient_watch import MOST_PARTS, GradientWatch, size_of, weights_of, whole_parts

_STEPS = 3  # that are watched: what became of the gradients of the first two
_OTHER = 0  # the identity of all that is no parameter
_MOST_LOOKS = 24  # at all tensors, for hooks: each takes some hundredths of a second
_MOST_REGISTERED = 10_000  # hooks between two backwards
_MOST_BACKWARDS = 100  # of a step: each is a graph to be walked through


@dataclass
class _Done:
    """A gradient that a backward has added to its parameter's."""

    parameter: int  # by identity
    gradient: weakref.ref[Any]
    backward: int  # the how manieth backward it was
    site: Site | None  # of that
    used: bool = False
    read: bool = False  # by the script itself


class Discarded(GradientWatch):
    """Looks at a few steps of a script that may drop gradients, and tells for each of a step what became of it.

    A gradient is used where an optimizer that holds the parameter steps while it is there: the tensor itself, not one
    that came after it was set to None. What no optimizer holds at all nobody uses as long as it stays what it is, or
    follows what one holds (:mod:`.followers`), nor has a hook of the script's. Two steps have to agree: a GradScaler
    leaves one out now and then. Only scripts get hooks that have several optimizers, or several backwards in a step, or
    an optimizer that holds what is no model's, or gradients of weights that none holds. Of each backward that drops
    some, somebody has to use something: an attack the gradient of a picture, say, or a heatmap that of a layer's
    activations, which a hook reads. What the script itself reads (``.grad``) is not dropped unread, and lines of its
    own that read others only are remembered.
    """

    def __init__(
        self,
        torch: ModuleType,
        roots: Callable[[], Iterable[Any]],
        held: Callable[[], Iterable[Iterable[Any]]],
        made: Callable[[Any], Site | None],
    ) -> None:
        """`roots` are the models, `held` each optimizer's parameters, `made` says where a module was made."""
        self._torch, self._held = torch, held
        # A tensor that nobody has any more, not even by name, may have a hook all the same.
        self._hooking = Patch(torch.Tensor, "register_hook", self._registers)
        self._reading = Patch(torch.Tensor, "grad", self._reads)
        super().__init__(roots, made)

    def _clear(self) -> None:
        self._done: list[_Done] = []
        self._of_gradient: dict[int, list[_Done]] = {}  # by its identity, which another one may have by now
        self._ends: list[int] = []  # of the steps, in `_done`
        self._backwards = 0
        self._before = 0  # of them, those before the step that is looked at
        self._looks = 0
        self._site: Site | None = None
        self._within_step = False
        self._optimized = True  # by an optimizer: something is
        self._registered: set[int] = set()  # nodes of tensors that got a hook since the last backward, by their numbers
        self._graphs: dict[int, AutogradGraph | None] = {}  # of each backward
        self._stepped: set[int] = set()  # the parameters of optimizers that stepped
        self._sizes: dict[int, Any] = {}  # the 2-norms of parameters that no optimizer holds
        self._averages: Followers | None = None
        self._inside = False  # all that somebody uses of the backwards is what hooks read
        self._follow: set[int] = set()  # of these, those that move towards a weight that one holds
        self._by_hand: set[int] = set()  # of these, those that somebody trains all the same
        self._known: set[int] = set()  # identities of parameters, of models and optimizers
        self._others: list[weakref.ref[Any]] = []  # leaves that are none
        self._frozen: list[Any] = []  # parameters without a hook as yet, which may get gradients in a part of a step
        self._read_at: set[tuple[str, int]] = set()  # lines of the script's that have read a gradient
        self.found: list[DiscardedGradients] = []
        self.reads: list[Site] = []  # lines that read gradients in the steps that were watched, and none of these
        self.accumulated: list[list[GradientRun]] = []
        self.nodes: list[list[GradientRun]] = []

    @property
    def watching(self) -> bool:
        return bool(self._handles)

    def begins(self) -> None:
        """A backward begins, watched or not."""
        self._backwards += 1

    def backward(self, site: Site | None, loss: Any) -> None:
        """It is watched, that of `loss`, at `site`."""
        self._site, self._within_step = site, _within_step()
        try:
            self._hook_all()
        except Exception:  # what fails here does not fail in the script
            self.stop()
            return
        if self._backwards - self._before > _MOST_BACKWARDS * (len(self._ends) + 1):
            self.stop()
            return
        graph = None
        with contextlib.suppress(Exception):
            for leaf in leaves_beside(loss, self._known):
                if all(leaf is not each() for each in self._others):
                    self._others.append(weakref.ref(leaf))
                    self._hook(leaf, self._of_another)
        if self._ends:  # the steps have to agree: one of them tells
            return
        with contextlib.suppress(Exception):
            self._looks += not self._optimized
            looks = not self._optimized and self._looks <= _MOST_LOOKS
            read = {*self._registered, *(read_by_hooks(self._torch) if looks else ())}
            graph = AutogradGraph.of(loss, read)
        self._registered.clear()
        self._graphs[self._backwards] = graph

    def stepped(self, parameters: Iterable[Any]) -> None:
        """An optimizer has done a step with what gradients these had."""
        now = {id(each): each.grad for each in parameters}
        self._stepped |= now.keys()
        taken = {id(each) for each in now.values() if each is not None}  # another one's, too, who hands it on
        for each in self._done:
            gradient = each.gradient()
            if gradient is not None and (each.parameter in now or each.parameter in self._sizes):
                each.used |= id(gradient) in taken

    def stop(self) -> None:
        super().stop()
        self._done, self._sizes, self._graphs, self._frozen, self._averages = [], {}, {}, [], None
        self._of_gradient = {}
        self._others, self._registered = [], set()

    def _hooks_off(self) -> None:
        super()._hooks_off()
        self._hooking.off()
        self._reading.off()

    def _first(self) -> None:
        self._before, self._ask = self._backwards, self._look

    def _look(self) -> None:
        groups = [list(each) for each in self._held()]
        held = {id(each): each for group in groups for each in group}
        weights = {id(each): each for each in self._parameters(frozen=True)}
        self._ask = self.stop
        free = any(each.grad is not None for key, each in weights.items() if key not in held)
        several = self._backwards - self._before > (1 if held else 0)
        self._before = self._backwards
        if not (free or several or len(groups) > 1) and held.keys() <= weights.keys():
            return  # each backward's gradients are that optimizer's
        self._optimized = bool(held)
        if not held:
            self._hooking.on()
        self._reading.on()
        self._sizes = {key: size_of(each) for key, each in weights.items() if key not in held}
        self._averages = None
        if free:
            models = [[each for each in weights_of(root) if id(each) in self._sizes] for root in self._roots()]
            with contextlib.suppress(Exception):  # others may be told of all the same
                self._averages = Followers(models, held.values())
        self._frozen = [each for each in (held | weights).values() if each.is_leaf]
        self._known = {*held, *weights}
        self._hook_all()
        self._ask = self._watched

    def _hook_all(self) -> None:
        """Have each parameter a hook that gets gradients now; where steps end, a critic may be frozen."""
        for each in self._frozen:
            if each.requires_grad:
                self._hook(each, self._accumulated)
        self._frozen = [each for each in self._frozen if not each.requires_grad]

    def _watched(self) -> None:
        if self._averages is not None and not self._follow:  # it may move every so many steps only
            with contextlib.suppress(Exception):
                self._follow = self._averages.found()
        self._ends.append(len(self._done))
        if len(self._ends) < _STEPS:
            return
        steps = [self._done[begin:end] for begin, end in zip([0, *self._ends], self._ends, strict=False)]
        alike = {tuple(each.parameter for each in step) for step in steps}
        if len(alike) == 1:
            self._judge(*steps[:2])
        self.stop()

    def _judge(self, step: list[_Done], next_step: list[_Done]) -> None:
        weights = {id(each): each for each in self._parameters(frozen=True) if not _has_hooks(each)}
        for root in self._roots():
            self._leave_out_trained_by_hand([each for each in weights_of(root) if id(each) in self._sizes])
        dropped, again = (
            [each.parameter in weights and self._dropped(weights[each.parameter], each) for each in one]
            for one in (step, next_step)
        )
        if dropped != again or not any(dropped):
            return
        judged = list(zip(step, dropped, strict=True))
        users = set()
        for number, of_one in groupby(judged, lambda each: each[0].backward):
            graph, gone = self._graphs.get(number), {each.parameter for each, drop in of_one if drop}
            if gone and graph is not None:
                users.add(graph.for_somebody(gone))
            elif gone and not self._optimized:  # of an optimizer's there is a use, in the backwards that it takes
                users.add("")
        if "" in users:
            return  # one is called for nothing that can be seen
        self._inside = users == {"hook"} and not self._optimized
        for _, of_one in groupby(judged, lambda each: each[0].backward):
            if all(each.parameter in self._follow for each, _ in of_one):
                return  # a backward that nothing would be left of computes them for somebody
        for number, of_one in groupby(judged, lambda each: each[0].backward):
            one = list(of_one)
            kinds = self._kinds(self._graphs.get(number), one)
            self.accumulated.append([GradientRun(len(list(run)), kind) for kind, run in groupby(kinds)])
            self.nodes.append(self._nodes(self._graphs.get(number), {each.parameter for each, drop in one if drop}))
        kinds = [run.kind for runs in self.accumulated for run in runs for _ in range(run.count)]
        branches = {each.parameter for each, kind in zip(step, kinds, strict=True) if kind == "branch"}
        for root in self._roots():
            own = {id(each): each for each in weights_of(root)}
            mine = [each for each, drop in judged if drop and each.parameter in own]
            if mine:
                self.reads = [Site(file, line) for file, line in sorted(self._read_at)]
                record = self._record(root, own, mine, step)
                record.branch = branches.issuperset(each.parameter for each in mine)
                self.found.append(record)

    def _leave_out_trained_by_hand(self, parameters: list[Any]) -> None:
        """Remember a model's parameters that no optimizer holds, where somebody has changed one of them since."""
        alone = [each for each in parameters if id(each) not in self._follow]
        if any(bool(size_of(each) != self._sizes[id(each)]) for each in alone):
            self._by_hand.update(map(id, parameters))

    def _kinds(self, graph: AutogradGraph | None, judged: list[tuple[_Done, bool]]) -> list[str]:
        """What becomes of the gradients of one backward, by :class:`..layout.GradientRun`."""
        dropped = {each.parameter for each, drop in judged if drop}
        branches = graph.branches(dropped) if graph is not None else set[int]()
        return ["used" if not drop else "branch" if each.parameter in branches else "weights" for each, drop in judged]

    def _nodes(self, graph: AutogradGraph | None, dropped: set[int]) -> list[GradientRun]:
        """What becomes of what the nodes of a backward's graph give; nothing where all of it is used."""
        kinds = graph.kinds(dropped) if graph is not None else []
        return [GradientRun(len(list(run)), kind) for kind, run in groupby(kinds)] if {*kinds} - {"used"} else []

    def _dropped(self, parameter: Any, done: _Done) -> bool:
        """Whether nobody has used that gradient of the parameter, and nobody will."""
        if done.read:
            return False
        if id(parameter) in self._sizes:
            return id(parameter) not in self._by_hand and not done.used
        if done.used:
            return False
        gradient = done.gradient()
        return id(parameter) in self._stepped and (gradient is None or gradient is not parameter.grad)

    def _record(self, root: Any, own: dict[int, Any], mine: list[_Done], step: list[_Done]) -> DiscardedGradients:
        inner = getattr(root, "_orig_mod", root)
        tensors = {each.parameter: own[each.parameter] for each in mine}
        sites = list({id(each.site): each.site for each in mine}.values())
        (site,) = sites if len(sites) == 1 else (None,)
        parts = list(islice(whole_parts(inner, set(tensors)), MOST_PARTS)) if tensors.keys() < own.keys() else []
        # Elsewhere the same call computes what is used of this model, too; or of the parts of one that holds several.
        kept, of_it = {id(each) for each in mine}, tensors if parts and "" not in parts else own
        both = any(each.site is site and each.parameter in of_it and id(each) not in kept for each in step)
        name, file = _name_of(root)
        return DiscardedGradients(
            cls=type(inner).__name__,
            made=self._made(inner),
            name=name,
            file=file,
            tensors=len(tensors),
            bytes=sum(each.numel() * each.element_size() for each in tensors.values()),
            held=not tensors.keys() <= self._sizes.keys(),
            inside=self._inside,
            parts=parts,
            backwards=len({each.backward for each in mine}),
            site=None if both else site,
        )

    def _registers(self, original: Any) -> Any:
        def register(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            handle = original(tensor, *args, **kwargs)
            with contextlib.suppress(Exception):
                if self.watching and tensor.grad_fn is not None and len(self._registered) < _MOST_REGISTERED:
                    self._registered.add(tensor.grad_fn._sequence_nr())
            return handle

        return register

    def _reads(self, original: Any) -> Any:
        def read(tensor: Any) -> Any:
            gradient = original.__get__(tensor)
            with contextlib.suppress(Exception):
                frame = sys._getframe(1)
                if gradient is not None and self.watching and is_users(frame):
                    self._read_at.add((frame.f_code.co_filename, frame.f_lineno))
                    for each in self._of_gradient.get(id(gradient), ()):
                        each.read |= each.gradient() is gradient
            return gradient

        return property(read, original.__set__, original.__delete__)

    def _of_another(self, leaf: Any) -> None:
        """What is no parameter has a gradient, another tensor in each step maybe."""
        if leaf.grad is not None:  # a hook of the script's may have taken it already
            self._done.append(_Done(_OTHER, weakref.ref(leaf.grad), self._backwards, self._site, True))

    def _accumulated(self, parameter: Any) -> None:
        gradient = parameter.grad
        if gradient is not None:
            used = self._within_step and id(parameter) not in self._sizes
            done = _Done(id(parameter), weakref.ref(gradient), self._backwards, self._site, used)
            self._done.append(done)
            self._of_gradient.setdefault(id(gradient), []).append(done)


def _has_hooks(parameter: Any) -> bool:
    """Whether somebody besides us is told of its gradients."""
    return bool(parameter._backward_hooks) or len(parameter._post_accumulate_grad_hooks or ()) > 1


def _name_of(module: Any) -> tuple[str, str]:
    """What the user's functions call a module that are running now, and the file of that; two times "" for none."""
    for frame in user_frames():
        owner = frame.f_locals.get("self")
        members = {**getattr(owner, "__dict__", {}), **(getattr(owner, "_modules", None) or {})}
        for prefix, names in (("", frame.f_locals), ("self.", members), ("", frame.f_globals)):
            for name, value in names.items():
                if value is module:
                    return prefix + name, site_of(frame).file
    return "", ""


def _within_step() -> bool:
    """Whether an optimizer calls this backward, with a closure: it looks at gradients itself."""
    frame = sys._getframe(1)
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        if frame.f_code.co_name == "step" and "closure" in frame.f_code.co_varnames:
            return True
    return False
