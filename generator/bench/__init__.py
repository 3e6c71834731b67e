"""``kgen bench``: what ops cost on a GPU, beside other implementations of them.

``cells`` says what is measured, ``subject`` what of kgen, ``providers`` what it is compared with;
``trial`` runs and checks one cell, ``kernel_time`` and ``latency`` measure, ``runner`` goes through
all cells, and ``results`` keeps what was found, for ``report`` and ``plots`` to show.
"""
