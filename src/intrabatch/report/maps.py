"""The map of the embedding space as SVG inside the page.

Shapes: N points.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .content import Picture, SpaceMap
from .images import data_uri, fitted
from .markup import Markup, tag
from .palette import class_colour

WIDTH, MARGIN, PICTURE = 760.0, 24.0, 34.0
LEAD = 12.0  # from a point up to its picture
MOST_EXEMPLARS = 36


def placed(points_N2: NDArray[np.floating]) -> tuple[NDArray[np.float64], float]:
    """The points inside a drawing WIDTH wide, one scale for both axes, and the drawing's height."""
    low_2, high_2 = points_N2.min(axis=0), points_N2.max(axis=0)
    extent_2 = np.maximum(high_2 - low_2, 1e-12)
    inner = WIDTH - 2 * MARGIN
    height = float(np.clip(inner * extent_2[1] / extent_2[0], 0.6 * inner, inner))
    scale = min(inner / extent_2[0], height / extent_2[1])
    top = MARGIN + PICTURE  # room for a picture above the highest point
    centre_2 = np.array([WIDTH / 2, height / 2 + top])
    return (points_N2 - (low_2 + high_2) / 2) * scale + centre_2, height + top + MARGIN


def exemplars(points_N2: NDArray[np.float64], labels_N: NDArray[np.int64], apart: float = 1.5 * PICTURE) -> list[int]:
    """The middle point of the tightest classes, no two closer than `apart` along both axes."""
    found = []
    for label in np.unique(labels_N):
        members = np.flatnonzero(labels_N == label)
        distances = np.linalg.norm(points_N2[members] - np.median(points_N2[members], axis=0), axis=1)
        if len(members) >= 3:
            found.append((float(distances.mean()), int(members[distances.argmin()])))
    chosen: list[int] = []
    for _, i in sorted(found):
        if all(np.abs(points_N2[i] - points_N2[j]).max() >= apart for j in chosen):
            chosen.append(i)
    return chosen[:MOST_EXEMPLARS]


def space_map(space: SpaceMap) -> Markup:
    """The map: a dot per image in its class's colour, and a few of the images themselves."""
    points_N2, height = placed(space.points_N2)
    groups = [_class(space, points_N2, label) for label in np.unique(space.labels_N).tolist()]
    pictures = []
    if space.thumbnails:
        shown = exemplars(points_N2, space.labels_N)
        pictures = [_exemplar(space.thumbnails[i], *points_N2[i].tolist()) for i in shown]
    box, label = f"0 0 {WIDTH:g} {height:.0f}", "Map of the embedding space"
    return tag("svg", *groups, *pictures, class_="map", viewBox=box, role="img", aria_label=label)


def _class(space: SpaceMap, points_N2: NDArray[np.float64], label: int) -> Markup:
    """The dots of one class; without the script its name shows under the pointer as well."""
    dots = [
        tag("circle", cx=f"{points_N2[i, 0]:.1f}", cy=f"{points_N2[i, 1]:.1f}", r="3.2", data_i=i)
        for i in np.flatnonzero(space.labels_N == label)
    ]
    return tag("g", tag("title", space.classes[label]), *dots, fill=class_colour(label))


def _exemplar(picture: Picture, x: float, y: float) -> Markup:
    """A picture above its point, tied to it by a line."""
    left, top, side = f"{x - PICTURE / 2:.1f}", f"{y - PICTURE - LEAD:.1f}", f"{PICTURE:g}"
    line = tag("line", x1=f"{x:.1f}", y1=f"{y:.1f}", x2=f"{x:.1f}", y2=f"{y - LEAD:.1f}")
    address = data_uri(fitted(picture, 2 * int(PICTURE)))
    return tag("g", line, tag("image", x=left, y=top, width=side, height=side, href=address), class_="exemplar")
