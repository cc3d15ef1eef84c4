"""ONNX: a program to a model file in one of several profiles, run by onnxruntime. Read profiles.py first."""

import os

# From 1.29 on onnxruntime tells Microsoft of its sessions, from a thread that begins with its import: what a user
# serves is told to nobody, and a forked child that ends would wait for that thread. It is read at the import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
