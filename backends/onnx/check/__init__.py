"""An ONNX file held against the program that it was made of, and wherever it lands."""
