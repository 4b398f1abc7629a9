"""N-grams counted by a Python loop and by the definition, which counts all of a pool or those it finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from orthrus.ops.define import find


def counted(rows: np.ndarray, grams: list[tuple[int, ...]], skip: int) -> np.ndarray:
    """How often each n-gram occurs in each row, its tokens 1 to `skip` + 1 apart; one token has no gap."""
    out = np.zeros((len(rows), len(grams)), np.int64)
    for i, row in enumerate(rows.tolist()):
        for g, gram in enumerate(grams):
            for step in range(1, (skip + 1 if len(gram) > 1 else 1) + 1):
                starts = range(len(row) - (len(gram) - 1) * step)
                out[i, g] += sum(tuple(row[s:s + len(gram) * step:step][:len(gram)]) == gram for s in starts)
    return out


@pytest.mark.parametrize("kind", ["int64", "text"])
@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("vocabulary", [2, 5])
def test_counts(kind: str, mode: str, shared: bool, vocabulary: int) -> None:
    """Columns that n-grams share, weights without bound of n-grams that are absent, no rows, few tokens."""
    rng = np.random.default_rng(vocabulary)
    levels = [[g for g in itertools.product(range(vocabulary), repeat=n) if rng.random() < 0.7]
              for n in (1, 2, 3)]
    grams = [g for level in levels for g in level]
    starts = np.cumsum([0, *(n * len(level) for n, level in enumerate(levels, 1))])[:-1]
    columns = rng.integers(0, len(grams), len(grams)) if shared else rng.permutation(len(grams))
    weights = rng.choice(np.array([np.inf, -1.5, 0.25, 2.0], np.float32), len(grams))
    tokens = [token for g in grams for token in g]
    pool = {"pool_int64s": tokens} if kind == "int64" else {"pool_strings": [f"w{t}" for t in tokens]}
    for shape, skip in (((4, 9), 0), ((3, 6), 2), ((2, 1), 1), ((0, 4), 0), ((2, 0), 0), ((50, 9), 1),
                        ((9, 9), 2), ((1, 70), 3)):
        x = rng.integers(0, vocabulary + 2, shape)
        made = find("", "TfIdfVectorizer", 9).bind({
            "mode": mode, "min_gram_length": 1, "max_gram_length": 3, "max_skip_count": skip,
            "ngram_counts": starts.tolist(), "ngram_indexes": columns.tolist(), "weights": weights.tolist(),
            **pool})(x if kind == "int64" else np.array([f"w{t}" for t in x.ravel()], object).reshape(shape))
        counts = counted(x, grams, skip)
        wanted = np.zeros((shape[0], columns.max() + 1), np.float32)
        for row, gram in zip(*counts.nonzero(), strict=True):
            count = 1 if mode == "IDF" else counts[row, gram]
            wanted[row, columns[gram]] += count * (1 if mode == "TF" else weights[gram])
        np.testing.assert_allclose(made, wanted, rtol=1e-5)
        assert not np.signbit(made[wanted == 0]).any()
