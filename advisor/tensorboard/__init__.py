"""What TensorBoard shows of the sessions: their scalars, and their traces by torch-tb-profiler."""
