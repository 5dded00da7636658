"""Training in bf16 on a CPU that multiplies bf16: kernels in C++, and the modules that call them.

`worker.prepare(model)` installs them in the copy of a model that a step runs on. Each equals PyTorch's own
operations up to rounding; without a compiler, those are used instead.
"""
