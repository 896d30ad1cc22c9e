"""Pure tensor functions, one row per sample. Imports torch only."""
