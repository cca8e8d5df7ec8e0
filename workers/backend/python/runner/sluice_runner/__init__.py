"""What a Python model's process runs on: its end of the channel to the worker, and the classes behind
triton_python_backend_utils. docs/0025-python-channel.md has the channel. Models import triton_python_backend_utils, never
this package.

From the bottom up: layout, rings, areas (memory); wire, tensor, dlpack, request, response, sender (batches); replies, calls,
control, metrics, logger (what a model asks for); model, instance, commands (the life of a model); forks.
"""
