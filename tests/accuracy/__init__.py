"""How right the advice is: every labelled script of ``fixtures/`` is profiled, and what is said of it is judged.

``make accuracy`` runs all of it and writes ``tests/benchmarks/results/accuracy.md``; ``python -m tests.accuracy
--help`` says how to run it in parts. ``scores`` are the formulas, ``judge`` compares what was said with what a case
expects, ``child`` profiles one case in a process of its own and tries its diffs, ``runs`` starts these and keeps their
results, ``peers`` are other tools on the same scripts, ``table`` is the page.
"""
