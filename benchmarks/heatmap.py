"""What attention maps cost: generation time with maps over without. ``python benchmarks/heatmap.py [--quick] [--json]``

The small SDXL model makes the same picture with and without a recorder in turn, every word of the prompt followed.
Figure: median of the ratios of processor time in one thread, which other programs hardly disturb. A full-sized UNet
does far more beside its cross-attention, so its share is smaller.
"""

from __future__ import annotations

import time

import numpy as np

from harness import Figure, arguments, close, median_ratio, paired, run_benchmark
from ti_fix.heatmap import Recorder, Wanted, places_of
from ti_fix.hosts.standalone import StandaloneHost, StandaloneModel, parts_of_small
from ti_fix.phrases import content_words
from ti_fix.protocols import ImageRequest, Sizes
from ti_fix.small import load

PROMPT = "a red circle beside a large blue star on a white background"
GOAL = 1.15


def main() -> None:
    """Measure, and see that the pictures are the same."""
    flags = arguments(__doc__ or "")
    repetitions, steps = (5, 8) if flags.quick else (20, 20)
    host = StandaloneHost(StandaloneModel(parts_of_small(load("sdxl"))))
    model = host.model()
    request = ImageRequest(prompt=PROMPT, width=128, height=128, steps=steps, cfg_scale=4.0)
    size = Sizes(original=(128, 128), target=(128, 128))
    context = model.encode_prompts([PROMPT], {}, [size]).context[0].detach()
    wanted = [Wanted(picture=0, context=context, places=places_of(PROMPT, content_words(PROMPT), {}))]
    pictures = {}

    def without() -> float:
        start = time.process_time()
        pictures["without"] = host.generate(request)
        return time.process_time() - start

    def with_maps() -> float:
        start = time.process_time()
        with Recorder(model.unet) as recorder:
            recorder.expect(wanted)
            pictures["with"] = host.generate(request)
        recorder.maps()
        return time.process_time() - start

    pairs = paired(with_maps, without, repetitions)
    same = np.array_equal(np.asarray(pictures["with"]), np.asarray(pictures["without"]))
    print(f"pictures with and without maps are {'the same' if same else 'DIFFERENT'}")
    print(f"one picture of {steps} steps takes {sorted(b for _, b in pairs)[len(pairs) // 2]:.2f} s without maps")
    figure = Figure(
        name="heatmap", figure=median_ratio(pairs), unit="times the time", better="lower", goal=GOAL, n=len(pairs)
    )
    close(figure, flags)


if __name__ == "__main__":
    run_benchmark(main)
