"""`tensorgate import FILE`: a model of XGBoost, LightGBM or scikit-learn becomes ONNX, proven to answer alike.

conversion   the library's model -> ONNX            rows     which inputs to compare them on
proof        both answer the same rows              verb     what is said and written
"""
