"""A model folder for other programs: ONNX for any runtime, sentence-transformers. What is written is measured first."""
