"""From embeddings to a map in the plane: PCA to 50 numbers, then t-SNE.

Shapes: N vectors of D numbers, M of them drawn.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.manifold import TSNE
from threadpoolctl import threadpool_limits

from ..errors import EvaluationError

NUM_COMPONENTS = 50
PERPLEXITY = 30.0
FEWEST_FOR_TSNE = 10


def project_2d(
    vectors_ND: NDArray[np.floating], seed: int, limit: int = 2000
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Which rows are drawn and where: (rows_M, points_M2). Beyond `limit` vectors a seeded sample is drawn.

    The distance is the Euclidean one: normalise the vectors first where retrieval is by cosine.
    """
    if vectors_ND.ndim != 2 or not np.isfinite(vectors_ND).all():
        raise EvaluationError(f"project_2d: expected finite vectors of shape (N, D), got an array {vectors_ND.shape}")
    num = len(vectors_ND)
    rows_M = np.arange(num)
    if num > limit:
        rows_M = np.sort(np.random.default_rng([seed, 0x3A9]).choice(num, limit, replace=False))
    components_MC = _principal_components(vectors_ND[rows_M].astype(np.float64))
    spread = components_MC[:, 0].std() if num else 0.0
    if len(rows_M) < FEWEST_FOR_TSNE or spread == 0:
        return rows_M, components_MC[:, :2]
    start_M2 = (components_MC[:, :2] / spread * 1e-4).astype(np.float32)
    perplexity = min(PERPLEXITY, (len(rows_M) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init=start_M2, random_state=seed)
    with threadpool_limits(1):  # t-SNE's threads wait on each other: 31 s on two busy cores, 4 s on one, 1,500 points
        return rows_M, tsne.fit_transform(components_MC.astype(np.float32)).astype(np.float64)


def _principal_components(vectors_MD: NDArray[np.float64]) -> NDArray[np.float64]:
    """The first 50 components, at least two (of zeros where there are fewer), each with its largest value positive."""
    components_MC = np.zeros((len(vectors_MD), 2))
    if len(vectors_MD):
        left_MC, sizes_C, _ = np.linalg.svd(vectors_MD - vectors_MD.mean(axis=0), full_matrices=False)
        found_MC = (left_MC * sizes_C)[:, :NUM_COMPONENTS]
        largest_C = np.abs(found_MC).argmax(axis=0)
        found_MC *= np.where(found_MC[largest_C, np.arange(found_MC.shape[1])] < 0, -1.0, 1.0)
        components_MC = np.pad(found_MC, ((0, 0), (0, max(0, 2 - found_MC.shape[1]))))
    return components_MC
