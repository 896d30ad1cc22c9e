"""What makes the engine fast on a GPU: CUDA graphs, speculation, compiling, tuning. Replaces whole objects."""
