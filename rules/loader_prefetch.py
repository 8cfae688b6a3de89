"""Bursty fetches: workers keep up on the whole, and the step waits for single batches that take long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from advisor.edit import Draft, Drafts
from advisor.edit.calls import DATALOADER_PARAMETERS, argument
from advisor.edit.loading.workers import only_with_workers
from advisor.edit.locate import call_at
from advisor.edit.origins.values import give
from advisor.evidence import Change
from advisor.evidence.loading.felt import waits
from advisor.evidence.loading.fetching import begins_anew
from advisor.evidence.loading.prefetch import DEFAULT, SHM_SHARE, made_ahead_bytes
from advisor.fixes import given_fix
from advisor.rule import Advice, Argument, Example, Finding, Gain, Rule, Safety, at, framework_of
from advisor.shared.frameworks import configured, construction

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.evidence.facts import LoaderFacts
    from advisor.harness.layout import Loader, RunRecord

_CANDIDATES = (4, 8, 16, 32)
_MEMORY_SHARE = 0.25  # leave three quarters of the memory that is free to others


class LoaderPrefetch(Rule):
    """The workers keep up on the whole, but some batches take long, and what was made ahead runs out meanwhile.

    Each worker makes ``prefetch_factor`` batches ahead, 2 by default, and batches are delivered in order. A fetch that
    takes much longer than the others (a new shard is opened, a request is slow, a long recording is decoded) holds up
    all batches after it; the step stands still once those ahead of it are used. With more of them made ahead a burst
    is absorbed. The number given here is the smallest that a replay of the very fetches that were measured finds to be
    within 2 % of the best.

    When not: the workers are too slow on the whole (``loader-workers``), so that nothing is ever made ahead; batches
    are large: each one that is made ahead takes memory, and room in ``/dev/shm``.

    Source: torch.utils.data docs, ``prefetch_factor``, "Single- and Multi-process Data Loading".
    """

    id = "loader-prefetch"
    title = "Make more batches ahead"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.record
        for facts in evidence.loaders:
            record = facts.record
            if run is None or record is None or not record.fetches or not waits(facts):
                continue
            if begins_anew(record):
                continue
            chosen = _choose(evidence, facts, run, record)
            if chosen is None:
                continue
            factor, gain = chosen
            longest = max(max(each) for each in record.fetches)
            usual = facts.fetch_s or 0.0
            owner = framework_of(record.owner)
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"The step waits {facts.wait_s * 1e3:.1f} ms ({facts.wait_share:.0%}) for batches although the "
                f"loader's {record.num_workers} worker{'' if record.num_workers == 1 else 's'} would keep up on the "
                f"whole: a batch takes {usual * 1e3:.1f} ms on average and up to {longest * 1e3:.0f} ms.",
                gain=gain,
                evidence={
                    "data_wait_s": facts.wait_s,
                    "data_wait_share": facts.wait_share,
                    "fetch_s": usual,
                    "fetch_spread": record.fetch_spread,
                    "longest_fetch_s": longest,
                    "workers": record.num_workers,
                    "prefetch_factor": record.prefetch_factor or DEFAULT,
                    "step_s": evidence.step_s,
                },
                site=facts.site,
                parameters={
                    "factor": factor,
                    "recorded": record.prefetch_factor,
                    **({"framework": owner, **construction(evidence)} if owner else {}),
                },
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Argument | Advice:
        factor, site = str(finding.parameters["factor"]), finding.site
        text = f"Give the loader at {at(site)} prefetch_factor={factor}."
        framework = str(finding.parameters.get("framework", ""))
        if framework == "transformers":
            text = f"Pass TrainingArguments(dataloader_prefetch_factor={factor})."
            settings = {"dataloader_prefetch_factor": factor}

            def code_of(draft: Draft, call: cst.Call, name: str) -> str | None:
                # What is given already suits the number of workers.
                given = argument(call, name) is not None
                return factor if given else only_with_workers(draft, call, factor, "None", "dataloader_num_workers")

            return configured(finding, sources, framework, settings, text, "Trainer makes the loader", None, code_of)
        if site is None:
            return Advice(f"Give the DataLoader prefetch_factor={factor}.", "its place is unknown")
        drafts = Drafts(sources)
        draft = drafts[site.file]
        call = call_at(draft, site, ("DataLoader",))
        if call is None:
            return Advice(text, "the call cannot be told from others on its line")
        recorded = finding.parameters.get("recorded")
        code = only_with_workers(draft, call, factor, "None")
        if argument(call, "prefetch_factor") is not None:
            code = factor  # what is given already suits the number of workers
        if code is None:
            return Advice(text, "whether the loader always has workers cannot be told from the source")
        option = give(drafts, draft, call, "prefetch_factor", code, DATALOADER_PARAMETERS, recorded)
        if option is None:
            return Advice(text, "where prefetch_factor comes from cannot be told from the source")
        return given_fix(drafts, draft, option, factor, text)

    EXAMPLES = (
        *(
            Example(
                before=f"import os\n{set_up}loader = DataLoader(shards, 64, {given})  # <-\n",
                after=f"import os\n{set_up}loader = DataLoader(shards, 64, {now})\n",
                parameters={"factor": 8, "recorded": 2},
            )
            for set_up, given, now in (
                ("", "num_workers=os.cpu_count()", "num_workers=os.cpu_count(), prefetch_factor=8"),
                (
                    "",
                    "num_workers=4 if cuda else 0",
                    "num_workers=4 if cuda else 0, prefetch_factor=8 if cuda else None",
                ),
                ('KW = {"num_workers": 4}\n', "**KW", "prefetch_factor=8, **KW"),
            )
        ),
        Example(
            before="loader = DataLoader(shards, batch_size=64, num_workers=2)  # <-\n",
            after="loader = DataLoader(shards, batch_size=64, num_workers=2, prefetch_factor=8)\n",
            parameters={"factor": 8, "recorded": 2},
        ),
        Example(
            before="""
loader = torch.utils.data.DataLoader(  # <-
    shards,
    num_workers=4,
    prefetch_factor=2,  # as ever
)
""",
            after="""
loader = torch.utils.data.DataLoader(
    shards,
    num_workers=4,
    prefetch_factor=16,  # as ever
)
""",
            parameters={"factor": 16, "recorded": 2},
        ),
        Example(
            before="""
parser.add_argument("--prefetch", type=int, default=2)
args = parser.parse_args()
loader = DataLoader(shards, num_workers=4, prefetch_factor=args.prefetch)  # <-
""",
            after="",
            parameters={"factor": 8, "recorded": 2},
            options={"--prefetch": "8"},
        ),
        Example(
            before="def f(data, n):\n    return DataLoader(data, num_workers=n)  # <-\n",
            after="def f(data, n):\n    return DataLoader(data, num_workers=n, prefetch_factor=8 if n > 0 else None)\n",
            parameters={"factor": 8, "recorded": 2},
        ),
        Example(  # Trainer makes the loader
            before="""
from transformers import Trainer, TrainingArguments

args = TrainingArguments("out", dataloader_num_workers=2)  # <- config
Trainer(model, args, train_dataset=dataset).train()
""",
            after="""
from transformers import Trainer, TrainingArguments

args = TrainingArguments("out", dataloader_num_workers=2, dataloader_prefetch_factor=8)
Trainer(model, args, train_dataset=dataset).train()
""",
            parameters={"factor": 8, "recorded": 2, "framework": "transformers"},
        ),
        Example(  # another run may have none
            before='args = TrainingArguments("out", dataloader_num_workers=cfg["workers"])  # <- config\n',
            after='args = TrainingArguments("out", dataloader_num_workers=cfg["workers"], '
            'dataloader_prefetch_factor=8 if cfg["workers"] > 0 else None)\n',
            parameters={"factor": 8, "recorded": 2, "framework": "transformers"},
        ),
    )
    LEAVES_ALONE = (
        Example("loader = DataLoader(shards, **settings())  # <-\n", "", {"factor": 8, "recorded": 2}),
        Example(  # the parser would end the script
            "parser.add_argument('--prefetch', type=int, choices=[2, 4], default=2)\nargs = parser.parse_args()\n"
            "loader = DataLoader(shards, num_workers=2, prefetch_factor=args.prefetch)  # <-\n",
            "",
            {"factor": 8, "recorded": 2},
        ),
        Example(
            "def f(data, n):\n    return DataLoader(data, num_workers=n, **KWARGS)  # <-\n\n"
            'KWARGS = {"prefetch_factor": 2}\n',
            "",
            {"factor": 8, "recorded": 2},
        ),
        Example("DataLoader(shards, prefetch_factor=FACTOR * 2)  # <-\n", "", {"factor": 8, "recorded": 2}),
    )


def _choose(evidence: Evidence, facts: LoaderFacts, run: RunRecord, loader: Loader) -> tuple[int, Gain] | None:
    """The smallest number within 2 % of the best, and its gain; None when none is worth it."""
    now = loader.prefetch_factor or DEFAULT
    gains: dict[int, Gain] = {}
    for factor in _CANDIDATES:
        enough = not facts.batches or loader.num_workers * factor <= facts.batches // 2  # each epoch begins with none
        if factor > now and enough and _fits(run, loader, factor):
            gains[factor] = Gain.of(evidence.what_if(Change(prefetch=factor, loader=facts.index)))
    best = max((gain.likely for gain in gains.values()), default=0.0)
    return next(((n, gain) for n, gain in gains.items() if gain.worth_it and gain.likely >= 0.98 * best), None)


def _fits(run: RunRecord, loader: Loader, factor: int) -> bool:
    """Whether so many batches fit into the memory that is free, and into the shared memory that they lie in."""
    needed = made_ahead_bytes(loader, loader.num_workers, factor)
    shm, free = run.environment.shm_bytes, run.memory.host_available
    return (shm is None or needed <= SHM_SHARE * shm) and (free is None or needed <= _MEMORY_SHARE * free)
