"""A program to an ONNX graph, a step a file."""
