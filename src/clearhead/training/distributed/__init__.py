"""Training by many processes, one for each device, that `torchrun` starts.

Reading order: `ranks` (who else is there, and what all of them agree on), `meeting` (how they come together),
`step` (one update by all ranks), `shard` and `tensor_parallel` (how a model is cut up), `checkpoint` (each
writes its own part), `heartbeat` (who has died).
One process on its own passes through none of it.
"""
