"""Faulty variants of generated ops, and whether the generated tests see them."""
