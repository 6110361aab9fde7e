"""Export of models: ONNX and sentence-transformers. Exports are compared with the model before they are kept."""
