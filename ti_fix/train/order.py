"""Which views make up each batch: every view of an epoch once, batches of one size, the same again from any step."""

from __future__ import annotations

from collections.abc import Sequence

from ti_fix.train.buckets import View
from ti_fix.train.random_streams import python_stream


class Order:
    """An endless row of batches of views; all views of a batch have the same target size.

    Each bucket deals out its views in an order that is shuffled anew each time through; the bucket of a batch is drawn
    with a chance that follows its number of views. Nothing but the seed and the number of the batch decides.

    Args:
        views: as often as they are to count.
        batch_size: views a batch; small buckets repeat theirs.
    """

    def __init__(self, views: Sequence[View], batch_size: int, seed: int) -> None:
        buckets: dict[tuple[int, int], list[View]] = {}
        for view in views:
            buckets.setdefault(view.target, []).append(view)
        self._buckets = [buckets[key] for key in sorted(buckets)]
        self._batch_size, self._seed = batch_size, seed
        self._next = 0
        self._dealt = [0] * len(self._buckets)
        self._shuffled: dict[tuple[int, int], list[View]] = {}

    def batch(self, number: int) -> list[View]:
        """The views of batch `number`, counted from 0. Going on by one is cheap, any other number is counted up to."""
        if number < self._next:
            self._next, self._dealt = 0, [0] * len(self._buckets)
        while True:
            bucket = self._bucket_of(self._next)
            start = self._dealt[bucket]
            self._dealt[bucket] += self._batch_size
            self._next += 1
            if self._next > number:
                return [self._view(bucket, start + i) for i in range(self._batch_size)]

    def _bucket_of(self, number: int) -> int:
        if len(self._buckets) == 1:
            return 0
        chance = python_stream(self._seed, "bucket", number)
        return chance.choices(range(len(self._buckets)), [len(bucket) for bucket in self._buckets])[0]

    def _view(self, bucket: int, place: int) -> View:
        round_, within = divmod(place, len(self._buckets[bucket]))
        if (bucket, round_) not in self._shuffled:
            shuffled = list(self._buckets[bucket])
            python_stream(self._seed, "order", bucket, round_).shuffle(shuffled)
            self._shuffled = {k: v for k, v in self._shuffled.items() if k[0] != bucket or k[1] == round_ - 1}
            self._shuffled[bucket, round_] = shuffled
        return self._shuffled[bucket, round_][within]
