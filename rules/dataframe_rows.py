"""Samples are taken out of a DataFrame of pandas row by row, and each row is made anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from advisor.edit import Drafts
from advisor.edit.loading.frame_columns import keep_columns
from advisor.evidence.loading.felt import waits
from advisor.evidence.loading.fetching import without
from advisor.fixes import edited
from advisor.rule import WIDEST, Advice, Example, Finding, Gain, Rule, Safety, at, site_list, where

if TYPE_CHECKING:
    from advisor.edit import Edit, Sources
    from advisor.evidence import Evidence
    from advisor.evidence.facts import LoaderFacts
    from advisor.harness.layout import Loader

_LEAST_GAIN = 1.1
_LEAST_SHARE = 0.1  # of the fetch, in pandas
# Under the harness's look a call of pandas takes 1.8 to 3.5 times as long as without: eight ways to take a row's values
# out, from iloc[i] to iloc[i][columns] (pandas 3.1, Python 3.11, measured for this project).
_LENGTHENED = (2.9, 2.1, 1.6)
# Seconds that stay, at least: of a line of the user's, and of a call of torch (torch.tensor of a number takes 2.5 us).
_LINE_S, _CALL_S = 0.2e-6, 2.5e-6
_BASIS = "calls of pandas take a half of what the harness sees, and a row of an array nothing (measured)"

# For examples: what is made of a row.
_OF_ONE_TYPE = """
import torch

class Rows:
    def __init__(self, frame):
        self.frame = frame

    def __getitem__(self, i):
        row = self.frame.iloc[i]  # <-
        return {label}
"""


class DataframeRows(Rule):
    """The dataset takes each sample out of a DataFrame of pandas, which makes a new Series of every row.

    ``frame.iloc[i]`` takes 15 µs, some columns of that row 100 µs more, ``frame["x"].iloc[i]`` 10 µs, where a row of a
    NumPy array takes 0.1 µs: a batch of 256 rows costs 30 ms, and the step of a model for tables a few. Columns that
    are kept as arrays, made once in ``__init__``, give the same numbers. The calls of pandas are timed in a few fetches
    before the measurement, in whatever process makes them.

    When not: making a sample takes much longer for something else (a picture is decoded); the frame changes while the
    script trains; the frame is too large to have its columns in memory twice.

    Source: pandas docs, "Enhancing performance"; the times were measured for this project (pandas 3.1, 24 columns).
    """

    id = "dataframe-rows"
    title = "Read samples from arrays of the DataFrame's columns"
    safety = Safety.EXACT

    def check(self, evidence: Evidence) -> Iterator[Finding]:
        for facts in evidence.loaders:
            loader = facts.record
            if loader is None or not loader.looks or not facts.fetch_s or not waits(facts):
                continue
            parts = [part for part in loader.parts if part.kind == "pandas"]
            seconds = sum(part.seconds for part in parts)
            saved = [_saved(facts, loader, seconds / longer) for longer in _LENGTHENED]
            if not parts or saved[1] < _LEAST_SHARE:
                continue
            gains = [Gain.of(evidence.what_if(without(facts, each))) for each in saved]
            likely, high = gains[1].likely, gains[2].high
            gain = Gain(min(likely, max(gains[0].low, high / WIDEST)), likely, high, _BASIS)
            if gain.likely < _LEAST_GAIN:
                continue
            longest = parts[0]
            also = f" (and {len(parts) - 1} more)" if len(parts) > 1 else ""
            yield Finding(
                rule=self.id,
                title=self.title,
                summary=f"{at(longest.site)}{also} asks pandas for each sample's row, about {saved[1]:.0%} of making a "
                f"batch. The step waits {facts.wait_s * 1e3:.1f} ms ({facts.wait_share:.0%}) for the next batch.",
                gain=gain,
                evidence={
                    "pandas_s": saved[1] * facts.fetch_s,
                    "fetch_s": facts.fetch_s,
                    "data_wait_s": facts.wait_s,
                    "workers": facts.workers,
                    "step_s": evidence.step_s,
                },
                site=longest.site,
                parameters={"lines": tuple(part.site for part in parts), "frames": tuple(loader.frames)},
            )

    def fix(self, finding: Finding, sources: Sources) -> Edit | Advice:
        site = finding.site
        text = (
            "Make arrays of the columns that a sample needs, once, in __init__ (self.x = frame[columns].to_numpy()), "
            f"and take the sample out of them {where(site)}: self.x[index]."
        )
        places = site_list(finding, "lines")
        if site is None or any(each.file != site.file for each in places):
            return Advice(text, "rows are taken out in several files")
        drafts, facts = Drafts(sources), finding.parameters.get("frames")
        lines = [each.line for each in places] or [site.line]
        why = keep_columns(drafts, drafts[site.file], lines, facts if isinstance(facts, tuple) else ())
        return Advice(text, why) if why else edited(drafts, text)

    EXAMPLES = (
        Example(
            before="""
import torch
from torch.utils.data import Dataset

class Delays(Dataset):
    def __init__(self, frame, features):
        self.frame = frame
        self.features = features

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, idx):
        if torch.is_tensor(idx):
            idx = idx.tolist()
        row = self.frame.iloc[idx]  # <-
        x = torch.tensor(row[self.features].values.astype("float32"))
        return x, torch.tensor(row["delay"], dtype=torch.float32), row.carrier
""",
            after="""
import torch
from torch.utils.data import Dataset

class Delays(Dataset):
    def __init__(self, frame, features):
        self.frame = frame
        self.features = features
        self.features_values = self.frame[self.features].to_numpy()
        self.delay_values = self.frame["delay"].to_numpy()
        self.carrier_values = self.frame.carrier.to_numpy()

    def __len__(self):
        return len(self.frame)

    def __getitem__(self, idx):
        if torch.is_tensor(idx):
            idx = idx.tolist()
        x = torch.tensor(self.features_values[idx].astype("float32"))
        return x, torch.tensor(self.delay_values[idx], dtype=torch.float32), self.carrier_values[idx]
""",
        ),
        Example(  # one column after another, some of them by the labels that are the rows' numbers
            before="""
import os
import numpy as np
import pandas as pd
import torch

class Marks:
    def __init__(self, path, root):
        self.marks = pd.read_csv(path)
        self.root = root

    def __getitem__(self, i):
        name = os.path.join(self.root, self.marks.iloc[i, 0])  # <-
        points = self.marks.iloc[i, 1:].values.astype("float").reshape(-1, 2)
        label = self.marks["label"][i]  # <- lines=self.marks["label"][i]
        return load(name), torch.from_numpy(points), label, self.marks.weight.iloc[i], self.marks.at[i, "Site ID"]
""",
            after="""
import os
import numpy as np
import pandas as pd
import torch

class Marks:
    def __init__(self, path, root):
        self.marks = pd.read_csv(path)
        self.root = root
        self.column_0_values = self.marks.iloc[:, 0].to_numpy()
        self.columns_values = self.marks.iloc[:, 1:].to_numpy()
        self.label_values = self.marks["label"].to_numpy()
        self.weight_values = self.marks.weight.to_numpy()
        self.site_id_values = self.marks["Site ID"].to_numpy()

    def __getitem__(self, i):
        name = os.path.join(self.root, self.column_0_values[i])
        points = self.columns_values[i].astype("float").reshape(-1, 2)
        label = self.label_values[i]
        return load(name), torch.from_numpy(points), label, self.weight_values[i], self.site_id_values[i]
""",
        ),
        Example(  # a row of the array is no memory of its own
            before="""
import torch

FEATURES = ["a", "b"]

class Rows:
    def __init__(self, frame):
        self.x, self.y = frame[FEATURES], frame["y"]
        self.all = frame

    def __getitem__(self, i):
        x = torch.from_numpy(self.all.iloc[i].values)  # <-
        z = self.all.loc[i, FEATURES].astype("float32").to_numpy()
        return x, torch.FloatTensor(self.all.iloc[i][["a", "b"]]), z
""",
            after="""
import torch

FEATURES = ["a", "b"]

class Rows:
    def __init__(self, frame):
        self.x, self.y = frame[FEATURES], frame["y"]
        self.all = frame
        self.all_values = self.all.to_numpy()
        self.features_values = self.all[FEATURES].to_numpy()
        self.columns_values = self.all[["a", "b"]].to_numpy()

    def __getitem__(self, i):
        x = torch.from_numpy(self.all_values[i].copy())
        z = self.features_values[i].astype("float32")
        return x, torch.FloatTensor(self.columns_values[i]), z
""",
        ),
        Example(  # numbers of a row that has made one type of several, and are given theirs
            before=_OF_ONE_TYPE.format(label='torch.tensor(int(row["y"]))'),
            after="""
import torch

class Rows:
    def __init__(self, frame):
        self.frame = frame
        self.y_values = self.frame["y"].to_numpy()

    def __getitem__(self, i):
        return torch.tensor(int(self.y_values[i]))
""",
            parameters={"frames": ("upcast",)},
        ),
    )
    LEAVES_ALONE = (
        Example(_OF_ONE_TYPE.format(label='torch.tensor(row["y"])'), "", {"frames": ("upcast",)}),
        Example(_OF_ONE_TYPE.format(label='row["y"]'), "", {"frames": ("date y",)}),
        Example(_OF_ONE_TYPE.format(label="encode(row)"), ""),
        Example(_OF_ONE_TYPE.format(label="row.mean()"), ""),
        Example(_OF_ONE_TYPE.format(label="row[i % 3]"), ""),
        Example(_OF_ONE_TYPE.format(label='row["y"]').replace("iloc", "loc"), "", {"frames": ("labels",)}),
        Example(_OF_ONE_TYPE.format(label='row["y"]') + "\n    def shuffle(self):\n        self.frame = mix()\n", ""),
        Example(_OF_ONE_TYPE.format(label='row["y"]') + "\n    def add(self):\n        self.frame['y'] += 1\n", ""),
        Example(_OF_ONE_TYPE.format(label='row["y"]') + "\nrows.frame = other\n", ""),
        Example(_OF_ONE_TYPE.format(label='row["y"]').replace("__getitem__", "sample"), ""),
        Example(_OF_ONE_TYPE.format(label='row["y"]').replace("iloc[i]", "iloc[self.order[i]]"), ""),
        Example("def sample(frame, i):\n    return frame.iloc[i]  # <-\n", ""),
    )


def _saved(facts: LoaderFacts, loader: Loader, pandas_s: float) -> float:
    """Share of the fetch that is saved where pandas takes so many seconds of it: not what else is seen in it."""
    fetch_s = facts.fetch_s or 0.0
    stays = ((loader.item_lines or 0.0) * _LINE_S + (loader.item_calls or 0.0) * _CALL_S) * (loader.batch_size or 1)
    stays += sum(part.seconds for part in loader.parts if part.kind == "collate")
    return max(0.0, min(pandas_s, fetch_s - stays)) / fetch_s if fetch_s else 0.0
