"""Training: from batches and a model to weights, with everything that survives an interruption.

Objectives, updates, schedules, averages, checkpoints, logs and the loop that
ties them together. May import `data`, `models`, `bundle`, `planner` and below;
never `decoding` or `interop`: what those give (decoded validation samples, for
one) is passed in.
"""
