"""The memory engine: a torch of shapes, in pure Python.

Tensors have a shape, a type and a storage but no numbers. Operators allocate what PyTorch's allocate, the tape keeps
what autograd keeps, and a storage gives its block back when its last holder lets go, because CPython counts references
as PyTorch does. So a model written as its modelling file in transformers reads has the lifetimes that it has there, and
every request goes through the model of the caching allocator that the simulation (level 1) uses too.

A function's docstring names the source of what it books: a file of PyTorch (ATen), transformers, PEFT or bitsandbytes.
"""
