"""Training: from batches and a model to weights, able to resume after any interruption.

Objectives, updates, schedules, averages, checkpoints, logs and the loop that
ties them together. May import `data`, `models`, `bundle`, `planner` and below;
never `decoding` or `interop`: callers pass in what those produce, such as decoded
validation samples.
"""
