"""Whether a loader's samples, or rows drawn by hand, are asked for again in later epochs, and are the same then."""

from __future__ import annotations

import linecache
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advisor.evidence import Evidence
    from advisor.harness.layout import Loader

_EPOCHS = 2
_ONE_EPOCH = (0.9, 1.5)  # steps over batches of a script that came to its end after one
# The run ends long before the first epoch does: ``for epoch in range(args.epochs):``, but for one that says 1.
_OVER_EPOCHS = re.compile(
    r"^[ \t]*for (?:\w*epoch\w*|ep) in (?!t?range\(1\))|^[ \t]*for \w+ in t?range\([^\n]*epochs|"
    r"\b(max_epochs|num_train_epochs)\s*=\s*(?!1\b)",
    re.MULTILINE | re.IGNORECASE,
)
_SO_MANY = re.compile(r"^[ \t]*for \w*ep(?:och)?\w* in t?range\((\d+)\)", re.MULTILINE | re.IGNORECASE)
# So many steps, for a script that draws its batches itself: a loop over them, a name for them, or an option.
_NO_STEPS = r"(?![\w-]*(?:warm|log|eval|val|save|time|print|every|per_|epoch|sampl|diffus|decay|inner))"
_STEPS = rf"{_NO_STEPS}\w*(?:steps?|iters?|iterations?|updates?)\w*"
_MANY_STEPS = re.compile(
    rf"^[ \t]*for {_STEPS} in t?range\((?:[01], *)?(\d[\d_]*)|^[ \t]*{_STEPS}(?: *: *int)? *= *(\d[\d_]*)\b|"
    rf"""["']{_NO_STEPS}(?:-[\w-]*)?{_STEPS}["'], [^\n]*\bdefault *= *(\d[\d_]*)""",
    re.MULTILINE | re.IGNORECASE,
)
# Random numbers that no generator's state tells of, or a dataset that is told which epoch it is.
_UNSEEN = re.compile(
    r"\b(default_rng|RandomState|Random)\(\s*\)|\bSystemRandom\b|\bsecrets\b|\burandom\b|"
    r"\btime_ns\(|\btime\.time\(\)[^\n]*seed|\.seed\(\s*\)|\bdata(set)?\.\w*epoch\b|"
    r"\b(default_rng|RandomState|Random|manual_seed)\([^\n]*epoch|(?<!sampler)\.set_epoch\("
)
# What is frozen is trained later, or is given the weights of another model now and then.
_FOLLOWS = re.compile(
    r"\bunfreeze\w*\(|\.load_state_dict\([^\n]{0,200}\.state_dict\(\)|\b\w*(?:hard|soft|polyak)_?(?:update|copy)\w*\(|"
    r"\bsync_(?:target|net|model|weights)\w*\(|\.data\.copy_\([^\n]*\.data\b|"
    r"\b(?:BaseFinetuning|BackboneFinetuning|ema_update|update_(?:ema|target|teacher|moving_average)\w*)\b",
    re.IGNORECASE,
)
# What may make other rows of those that a script draws from: a simulation's, or what is changed at random.
_OTHER_ROWS = re.compile(
    r"\benv\w*\.(?:step|reset)\(|rollout|replay|augment|jitter|mixup|cutmix|\.flip\(|\.roll\(|"
    r"\brandom\w*\.(?:random|uniform)\(\)? *<|\brand\(\(?\)?\)[^\n]*<|random_(?:crop|flip|shift|erase|noise)",
    re.IGNORECASE,
)
# Likewise, under an ``if`` that asks how far the training is, in one of so many lines below it.
_IF, _HOW_FAR = re.compile(r"\bif\b"), re.compile(r"epoch|step|iter|phase|stage", re.IGNORECASE)
_TRAINS, _BELOW = re.compile(r"requires_grad|unfreeze|thaw", re.IGNORECASE), 5


def comes_round(evidence: Evidence, loader: Loader) -> bool:
    """Whether each sample is asked for in more than one epoch: seen, or by a loop over epochs in the source."""
    record = evidence.record
    if loader.epochs >= _EPOCHS:
        return True
    if record is not None and record.total_steps and loader.batches:
        least, most = _ONE_EPOCH
        if least * loader.batches <= record.total_steps < most * loader.batches:
            return False
    return any(_OVER_EPOCHS.search(text) for text in _sources(evidence, loader))


def epochs_of(evidence: Evidence, loader: Loader) -> float | None:
    """How many epochs the training has: a script's that came to its end, or one number in the source; else None."""
    record = evidence.record
    if record is not None and record.total_steps and loader.batches and record.total_steps >= loader.batches:
        return record.total_steps / loader.batches
    written = {int(each) for text in _sources(evidence, loader) for each in _SO_MANY.findall(text)}
    return float(next(iter(written))) if len(written) == 1 else None


def rounds_of(evidence: Evidence, samples: int, batch: int) -> float | None:
    """How many epochs a training has that draws each batch of so many from `samples` itself.

    0.0 where nothing tells of more than one, or something tells of other samples; None where they are not known but by
    a loop over epochs in the source.
    """
    record = evidence.record
    if record is None or not samples:
        return 0.0
    texts = _texts(sorted(path for path in (record.script, *record.modules) if path))
    if any(map(_OTHER_ROWS.search, texts)):
        return 0.0  # each epoch, or each round of play, may have rows of its own
    if record.total_steps:
        return record.total_steps * batch / samples
    if any(_OVER_EPOCHS.search(text) for text in texts):
        written = {int(each) for text in texts for each in _SO_MANY.findall(text)}
        return float(next(iter(written))) if len(written) == 1 else None
    steps = [int(each) for text in texts for found in _MANY_STEPS.findall(text) for each in found if each]
    return max(steps, default=0) * batch / samples


def stays_the_same(evidence: Evidence, loader: Loader) -> bool:
    """Whether a sample is the same each time: nothing random was drawn to make the first ones, nor can be unseen."""
    if loader.iterable or loader.draws is not False or loader.dataset_length is None:
        return False
    return not any(_UNSEEN.search(text) for text in _sources(evidence, loader))


def may_thaw(evidence: Evidence, loader: Loader) -> bool:
    """Whether the source says that what is frozen now is trained later, or follows what is trained."""
    return any(map(_thaws, _sources(evidence, loader)))


def may_thaw_anywhere(evidence: Evidence) -> bool:
    """The same of the script and its modules, where no loader is known."""
    record = evidence.record
    return any(map(_thaws, _texts([record.script, *record.modules] if record else [])))


def _thaws(text: str) -> bool:
    return bool(_FOLLOWS.search(text)) or _thaws_at_some_time(text)


def _thaws_at_some_time(text: str) -> bool:
    lines = text.splitlines()
    asked = (at for at, line in enumerate(lines) if _IF.search(line) and _HOW_FAR.search(line) and ":" in line)
    return any(_TRAINS.search(line) for at in asked for line in lines[at + 1 : at + 1 + _BELOW])


def _sources(evidence: Evidence, loader: Loader) -> list[str]:
    """The user's own files, and that of the dataset's class."""
    record = evidence.record
    paths = {loader.site.file if loader.site is not None else "", *((record.script, *record.modules) if record else ())}
    paths |= {loader.dataset_file} if "site-packages" not in loader.dataset_file else set()
    return _texts(sorted(path for path in paths if path))


def _texts(paths: list[str]) -> list[str]:
    return ["".join(linecache.getlines(path)) for path in paths if path]
