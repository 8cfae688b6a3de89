"""Settings of a training that a framework runs: changed where the script tells them to the framework, never inside it.

What the harness has recorded of the construction (:mod:`advisor.harness.frameworks`) travels in a finding's parameters
(:func:`construction`), and :func:`configured` makes the fix of it: an edit of the call, or of the place that its value
comes from; the command-line argument; else advice.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.calls import argument
from advisor.edit.changes import is_set
from advisor.edit.locate import call_at, last_name
from advisor.edit.names import ensure_name
from advisor.edit.origins.options import option_value
from advisor.edit.origins.origin import UNKNOWN
from advisor.edit.origins.values import EDITED, change_setting, give
from advisor.rule import Advice, Argument, Finding, at, call_sites, site_list

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.harness.layout import Site

# What constructs the settings, by the kind of its call site, and whose it is.
_OF = {
    "TrainingArguments": "transformers",
    "Trainer": "lightning",
    "Fabric": "lightning",
    "Accelerator": "accelerate",
}
_DEFAULT = {"transformers": "TrainingArguments", "lightning": "Trainer", "accelerate": "Accelerator"}
# transformers.HfArgumentParser: every field of TrainingArguments is an option of the command line; or a key in a file.
_PARSES_COMMAND_LINE = "parse_args_into_dataclasses"
_PARSES_FILE = ("parse_json_file", "parse_yaml_file", "parse_dict")  # a dict of what the script read itself, mostly

Then = Callable[[Drafts, Draft, cst.Call], str]
Code = Callable[[Draft, cst.Call, str], str | None]


def construction(evidence: Evidence) -> dict[str, object]:
    """Parameters of a finding that tell where, and with what, the script has set up its framework.

    Empty where it has none, or several, of which nobody knows which one the steps belong to.
    """
    found = call_sites(evidence, *_OF, every_step=False)
    if len(found) != 1 or evidence.record is None:
        return {}
    (made,) = found
    return {
        "config": (made.site,),
        "config_kind": made.kind,
        "config_class": made.details.get("class", made.kind),
        "config_values": made.details.get("values", {}),
        "config_takes": tuple(made.details.get("takes", ())),
    }


def told_every(evidence: Evidence, what: str) -> int | None:
    """The steps between two evaluations (`what` is "eval") or checkpoints ("save") that the script told transformers.

    None where it told nothing of the kind: by epochs, say, or as a share of the training.
    """
    found = construction(evidence)
    values = found.get("config_values")
    if found.get("config_kind") != "TrainingArguments" or not isinstance(values, Mapping):
        return None
    strategies = [values.get(f"{name}_strategy") for name in (("eval", "evaluation") if what == "eval" else (what,))]
    every = values.get(f"{what}_steps")
    if what == "eval" and not every:
        every = values.get("logging_steps")  # transformers evaluates by these where it is told no others
    # As a share of the steps it is a float.
    return every if "steps" in strategies and type(every) is int and every > 0 else None


def framework_set_up(finding: Finding) -> str:
    """The framework whose construction the finding knows: ``transformers``, ``lightning``, ``accelerate``; or empty."""
    return _OF.get(str(finding.parameters.get("config_kind", "")), "")


def told(finding: Finding, name: str) -> object:
    """The value that the run saw for a setting; None where it was not given."""
    values = finding.parameters.get("config_values")
    return values.get(name) if isinstance(values, Mapping) else None


def takes(finding: Finding, name: str) -> bool:
    """Whether the constructor, as it is installed, has a parameter of that name; where unknown, yes."""
    known = finding.parameters.get("config_takes")
    return name in known if isinstance(known, tuple) else True


def configured(
    finding: Finding,
    sources: Sources,
    framework: str,
    settings: Mapping[str, str],
    text: str,
    why: str,
    then: Then | None = None,
    code_of: Code | None = None,
    together: bool = False,
) -> Edit | Argument | Advice:
    """The fix that has the framework told `settings`: the code of each value by its name, the one that counts first.

    `text` is what it does, in words, and `why` the reason for advice where no construction was seen. `then` edits what
    else has to change in the file of the call, and returns why it could not. `code_of` gives the code of a setting that
    depends on the call, by its name; one without is left out. With `together` all of them count, and
    nothing else may get another value.
    """
    places = site_list(finding, "config")
    if len(places) != 1 or framework_set_up(finding) not in (framework, ""):
        return Advice(text, why)
    (site,) = places
    of = str(finding.parameters.get("config_class") or _DEFAULT[framework])
    text = f"{text.rstrip('.')} at {at(site)}."
    first = next(iter(settings))
    if not takes(finding, first):
        return Advice(text, f"{of} takes no {first} as it is installed")
    if told(finding, first) == _value(settings[first]):
        return Advice(text, f"{of} is told so already")
    settings = {
        name: code
        for name, code in settings.items()
        if takes(finding, name) and (name == first or told(finding, name) != _value(code))
    }
    drafts = Drafts(sources)
    draft = drafts[site.file]
    call = call_at(draft, site, (of,))
    if call is None or last_name(draft, call) != of:
        return _parsed(drafts, draft, site, finding, settings, text, together)
    if together and any(is_set(drafts, draft, name) for name in settings):
        return Advice(text, "the script sets one of them later, too")
    options: dict[str, str] = {}
    for name, plain in settings.items():
        seen, code = told(finding, name), plain if code_of is None else code_of(draft, call, name)
        if code is None and name == first:
            return Advice(text, f"what its {name} depends on cannot be told from the source")
        if code is None:
            continue
        given = give(
            drafts,
            draft,
            call,
            name,
            _named(draft, code),
            recorded=UNKNOWN if seen is None else seen,
            flags=True,
            alone=together,
        )
        if given and (name == first or together):
            option = given.removesuffix("!")
            word = "" if given.endswith("!") else option_value(drafts, draft, option, code)
            if word is None:
                return Advice(text, f"{option} may not take {_word(code)}, by its type or choices")
            options[option] = word
        elif given is None and (name == first or together):
            return Advice(text, f"where its {name} comes from cannot be told from the source")
        if name == first and given != EDITED and not together:
            break
    if then is not None and (reason := then(drafts, draft, call)):
        return Advice(text, reason)
    # An option alone changes no source.
    if options and (together or then is not None) and drafts.edit(text) is not None:
        return Advice(text, "the script has to be changed as well")
    if options:
        return Argument(options)
    return _edit(drafts, text, site) or Advice(text, "the file is not the script's own")


def _edit(drafts: Drafts, text: str, site: Site) -> Edit | None:
    """The drafts as one edit, whose place is the construction's."""
    edit = drafts.edit(text)
    return replace(edit, site=site) if edit is not None else None


def _parsed(
    drafts: Drafts,
    draft: Draft,
    site: Site,
    finding: Finding,
    settings: Mapping[str, str],
    text: str,
    together: bool,
) -> Edit | Argument | Advice:
    """The fix where a parser constructs it, from the command line or from a file."""
    call = call_at(draft, site)
    name = last_name(draft, call) if call is not None else ""
    if call is not None and name == _PARSES_COMMAND_LINE and argument(call, "args", ("args",)) is None:
        return Argument({f"--{option}": _word(code) for option, code in settings.items()})
    if name in _PARSES_FILE:
        given = [change_setting(drafts, [option], code, told(finding, option)) for option, code in settings.items()]
        edit = _edit(drafts, text, site) if (all(given) if together else given[0]) else None
        if edit is not None:
            return edit
        values = ", ".join(f"{option}: {_value(code)}" for option, code in settings.items())
        return Advice(f"{text} In the file that is read there: {values}.", "its values come from a file")
    return Advice(text, "what constructs it there is no call that could be edited")


def _value(code: str) -> object:
    """What a literal says; other code as it is written."""
    try:
        return ast.literal_eval(code)
    except ValueError:
        return code


def _word(code: str) -> str:
    """A value as a command line has it: of a dict, its JSON."""
    value = _value(code)
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _named(draft: Draft, code: str) -> str:
    """The code, with a call's dotted name as the file would write it."""
    name, bracket, rest = code.partition("(")
    return ensure_name(draft, name) + bracket + rest if bracket and name.replace(".", "").isidentifier() else code
