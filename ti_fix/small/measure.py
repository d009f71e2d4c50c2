"""Continuous attributes of a one-object scene, measured from pixels alone (numpy).

Pictures are (n, 128, 128, 3) arrays in 0..255. These are the yardstick's errors: hue in degrees, stripe period in
octaves and angle in degrees, two-tone hues and angle, silhouette as 1 - IoU.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ti_fix.small import scenes

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
TEMPLATE = 64  # side of the normalised silhouette
TEMPLATE_AREA = 0.3  # share of it that a silhouette fills


def background_of(picture: Floats) -> Floats:
    """Median colour of the two outermost pixel rings, (3,)."""
    edge = np.concatenate(
        [
            picture[:2].reshape(-1, 3),
            picture[-2:].reshape(-1, 3),
            picture[:, :2].reshape(-1, 3),
            picture[:, -2:].reshape(-1, 3),
        ]
    )
    return np.asarray(np.median(edge, 0))


def object_mask(picture: Floats) -> Mask:
    """Pixels that differ clearly from the background, specks removed."""
    distance = np.sqrt(((picture - background_of(picture)) ** 2).sum(-1))
    inside = distance > max(28.0, 0.4 * float(np.percentile(distance, 97)))
    return inside & dilated(eroded(inside))


def _neighbours(mask: Mask) -> list[Mask]:
    return [np.roll(mask, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]


def eroded(mask: Mask) -> Mask:
    """Without the outermost pixel."""
    return np.logical_and.reduce(_neighbours(mask))


def dilated(mask: Mask) -> Mask:
    """With one more pixel around."""
    return np.logical_or.reduce(_neighbours(mask))


def hue_saturation_value(picture: Floats) -> tuple[Floats, Floats, Floats]:
    """Hue in degrees, saturation 0..1, value 0..255."""
    low, high = picture.min(-1), picture.max(-1)
    span = np.maximum(high - low, 1e-6)
    r, g, b = picture[..., 0], picture[..., 1], picture[..., 2]
    hue = np.where(high == r, (g - b) / span % 6, np.where(high == g, (b - r) / span + 2, (r - g) / span + 4)) * 60
    return hue, (high - low) / np.maximum(high, 1), high


def circular_mean(degrees: Floats) -> float:
    """Mean direction in degrees, 0..360."""
    a = np.radians(degrees)
    return math.degrees(math.atan2(float(np.sin(a).sum()), float(np.cos(a).sum()))) % 360


def _coloured(picture: Floats, mask: Mask) -> tuple[Floats, Mask]:
    hue, saturation, value = hue_saturation_value(picture)
    inner = eroded(eroded(mask)) & (saturation > 0.25) & (value > 60)
    if inner.sum() < 20:
        inner = mask & (saturation > 0.25) & (value > 60)
    return hue, inner


def _mode(hues: Floats, allowed: NDArray[np.bool_] | None = None) -> float:
    counts = np.bincount((hues // 10).astype(int) % 36, minlength=36).astype(float)
    counts = counts + np.roll(counts, 1) + np.roll(counts, -1)
    if allowed is not None:
        counts = counts * allowed
    return float(counts.argmax() * 10 + 5)


def _distances(hues: Floats, centre: float) -> Floats:
    return np.asarray(np.abs((hues - centre + 180) % 360 - 180))


def object_hue(picture: Floats) -> float:
    """Main hue of the object in degrees, NaN when it has no colour."""
    hue, inner = _coloured(picture, object_mask(picture))
    if inner.sum() < 12:
        return math.nan
    hues = hue[inner]
    return circular_mean(hues[_distances(hues, _mode(hues)) < 35])


def hue_error(picture: Floats, hue: float) -> float:
    """Degrees between the object's hue and ``hue``; 90 when there is none."""
    found = object_hue(picture)
    return 90.0 if math.isnan(found) else scenes.hue_distance(found, hue)


def silhouette(mask: Mask) -> Mask:
    """The mask moved to its centroid and scaled to a fixed area, (64, 64)."""
    area = float(mask.sum())
    if area < 60:
        return np.zeros((TEMPLATE, TEMPLATE), bool)
    y, x = np.nonzero(mask)
    scale = math.sqrt(area / (TEMPLATE_AREA * TEMPLATE**2))
    grid = (np.arange(TEMPLATE) - TEMPLATE / 2 + 0.5) * scale
    rows = np.clip(np.round(y.mean() + grid), 0, mask.shape[0] - 1).astype(int)
    columns = np.clip(np.round(x.mean() + grid), 0, mask.shape[1] - 1).astype(int)
    return np.asarray(mask[np.ix_(rows, columns)])


def silhouette_error(picture: Floats, wanted: Mask) -> float:
    """1 - intersection over union of the normalised silhouettes."""
    found = silhouette(object_mask(picture))
    union = float((found | wanted).sum())
    return 1.0 - float((found & wanted).sum()) / max(union, 1.0)


def _pattern_signal(picture: Floats, mask: Mask) -> tuple[Floats, float]:
    """Main colour axis inside the mask as a centred signal, and how two-sided it is (0..0.5)."""
    inner = eroded(mask)
    colours = picture[inner]
    centred = colours - colours.mean(0)
    axis = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    values = centred @ axis
    spread = float(values.std())
    signal = np.zeros(mask.shape)
    signal[inner] = np.clip(values / max(spread, 1e-6), -1.5, 1.5)
    signal[inner] -= signal[inner].mean()
    side = float((values > (values.min() + values.max()) / 2).mean())
    return signal, min(side, 1 - side) if spread > 18 else 0.0


def stripes(picture: Floats) -> tuple[float, float]:
    """Period in pixels and angle of the stripes' normal in degrees (mod 180); NaN when there are none."""
    mask = object_mask(picture)
    if eroded(mask).sum() < 150:
        return math.nan, math.nan
    signal, balance = _pattern_signal(picture, mask)
    if balance < 0.15:
        return math.nan, math.nan
    side = 512
    power = np.abs(np.fft.rfft2(signal, (side, side))) ** 2
    fy, fx = np.meshgrid(np.fft.fftfreq(side), np.fft.rfftfreq(side), indexing="ij")
    frequency = np.hypot(fx, fy)
    power = np.where((frequency > 1 / 52) & (frequency < 1 / 11), power, 0)
    i, j = divmod(int(power.argmax()), power.shape[1])
    return float(1 / frequency[i, j]), math.degrees(math.atan2(fy[i, j], fx[i, j])) % 180


def stripe_errors(picture: Floats, period: float, angle: float) -> tuple[float, float]:
    """Octaves of period and degrees of angle; (1, 45) when there are no stripes."""
    found_period, found_angle = stripes(picture)
    if math.isnan(found_period):
        return 1.0, 45.0
    turn = abs((found_angle - angle + 90) % 180 - 90)
    return min(abs(math.log2(found_period / period)), 1.0), min(turn, 90.0)


def two_hues(picture: Floats) -> tuple[float, float, float]:
    """Both hues of a two-tone object and the direction from the second to the first in degrees; NaN when absent."""
    mask = object_mask(picture)
    hue, inner = _coloured(picture, mask)
    if inner.sum() < 60:
        return math.nan, math.nan, math.nan
    hues = hue[inner]
    y, x = np.nonzero(inner)
    first = _mode(hues)
    far = np.array([scenes.hue_distance(first, 10 * k + 5) > 30 for k in range(36)])
    if (_distances(hues, first) > 30).mean() < 0.08:
        return circular_mean(hues), math.nan, math.nan
    second = _mode(hues, far)
    for _ in range(4):
        nearer = _distances(hues, first) <= _distances(hues, second)
        if nearer.all() or not nearer.any():
            return first, math.nan, math.nan
        groups = [hues[nearer & (_distances(hues, first) < 30)], hues[~nearer & (_distances(hues, second) < 30)]]
        first, second = (circular_mean(g) if len(g) else c for g, c in zip(groups, (first, second), strict=True))
    away = (y[nearer].mean() - y[~nearer].mean(), x[nearer].mean() - x[~nearer].mean())
    return first, second, math.degrees(math.atan2(*away)) % 360


def two_tone_errors(picture: Floats, first: float, second: float, angle: float) -> tuple[float, float]:
    """Mean degrees of the two hues (best assignment) and degrees of the direction; 90 each when not two-tone."""
    a, b, direction = two_hues(picture)
    if math.isnan(b):
        missing = 90.0 if math.isnan(a) else min(scenes.hue_distance(a, first), scenes.hue_distance(a, second))
        return (missing + 90.0) / 2, 90.0
    straight = (scenes.hue_distance(a, first) + scenes.hue_distance(b, second)) / 2
    swapped = (scenes.hue_distance(a, second) + scenes.hue_distance(b, first)) / 2
    if swapped < straight:
        straight, direction = swapped, direction + 180
    return straight, min(scenes.hue_distance(direction, angle), 90.0)
