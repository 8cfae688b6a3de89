"""The profiler tutorial's training at its full size on a GPU: the advisor's loop beside what people do by hand.

``make gpu`` runs all of it and writes ``tests/benchmarks/results/gpu_tutorial.md``. README.md, beside this file, says
how to run it in parts.
"""
