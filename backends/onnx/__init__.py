"""ONNX: a program to a model file in one of several profiles, run by onnxruntime. Read profiles.py first."""
