"""ONNX models, by ONNX Runtime."""
