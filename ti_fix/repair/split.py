"""Embeddings with more vectors than a prompt chunk takes, cut into parts that fit."""

from __future__ import annotations

from dataclasses import replace

from ti_fix.embedding import MAX_VECTORS, Embedding


def split(embedding: Embedding, most: int = MAX_VECTORS) -> list[Embedding]:
    """Parts of at most `most` rows, called name-1, name-2, …; one part is the embedding itself.

    A prompt that names the parts one after the other gets the vectors in the same order, a chunk each.
    """
    rows = embedding.num_vectors
    if rows <= most:
        return [embedding]
    return [
        replace(
            embedding,
            name=f"{embedding.name}-{part + 1}",
            vectors={key: block[start : start + most].clone() for key, block in embedding.vectors.items()},
            aliases=(),
        )
        for part, start in enumerate(range(0, rows, most))
    ]
