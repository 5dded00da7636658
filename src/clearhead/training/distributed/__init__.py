"""Distributed training: many processes, one for each device, started by `torchrun`.

Reading order: `ranks` (who else is there, and what all of them agree on), `meeting` (how they join),
`step` (one update by all ranks), `shard` and `tensor_parallel` (how a model is sharded), `checkpoint` (each
rank writes its own part), `heartbeat` (which rank has died).
A single process uses none of it.
"""
