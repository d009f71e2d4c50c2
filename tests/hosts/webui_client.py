"""A running WebUI, asked over HTTP."""

from __future__ import annotations

import base64
import io
import json
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

FOOT = re.compile(r"(version|python|torch|gradio): (?:<[^>]*>)?\s*([^<\s]+)")
REPOSITORY = re.compile(r"version: <a href=\"https://github\.com/([^/]+/[^/]+)/")
"""What the foot of the page says of itself, in all kinds of WebUI."""


class Failed(Exception):
    """The WebUI did not start, or answered with an error."""


@dataclass(frozen=True, eq=False)
class Picture:
    """A generated picture.

    Attributes:
        pixels: the colour values; texts in the file play no part.
        infotext: the generation parameters.
    """

    pixels: NDArray[np.int16]
    infotext: str

    def differs(self, other: Picture) -> float:
        """Mean absolute difference in grey levels; 255 for another size."""
        if self.pixels.shape != other.pixels.shape:
            return 255.0
        return float(np.abs(self.pixels - other.pixels).mean())

    def equals(self, other: Picture) -> bool:
        """Whether every pixel is the same."""
        return self.differs(other) == 0


class Client:
    """A running WebUI with --api.

    Args:
        url: its address.
        auth: NAME:PASSWORD of --api-auth, empty where it asks for none.
    """

    def __init__(self, url: str, auth: str = "") -> None:
        self.url = url.rstrip("/")
        self._head = {"Content-Type": "application/json"}
        if auth:
            self._head["Authorization"] = "Basic " + base64.b64encode(auth.encode()).decode()

    def get(self, path: str) -> Any:
        """A GET request; the answer's JSON."""
        return self._ask(urllib.request.Request(self.url + path, headers=self._head))

    def post(self, path: str, body: object) -> Any:
        """A POST request; the answer's JSON."""
        return self._ask(urllib.request.Request(self.url + path, json.dumps(body).encode(), self._head))

    def _ask(self, request: urllib.request.Request) -> Any:
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            raise Failed(f"HTTP {error.code}: {_reason(error.read())}") from None
        except OSError as error:
            raise Failed(str(error)) from None

    def picture(self, prompt: str, **changes: object) -> Picture:
        """One small picture.

        Raises:
            Failed: the generation failed.
        """
        body = {"prompt": prompt, "seed": 1, "steps": 2, "width": 64, "height": 64, "cfg_scale": 4, **changes}
        answer = self.post("/sdapi/v1/txt2img", {"negative_prompt": "", "sampler_name": "Euler", **body})
        image = Image.open(io.BytesIO(base64.b64decode(answer["images"][0]))).convert("RGB")
        return Picture(np.asarray(image, dtype=np.int16), json.loads(answer["info"])["infotexts"][0])

    def options(self, **values: object) -> None:
        """Change settings."""
        self.post("/sdapi/v1/options", values)

    def loaded(self) -> set[str]:
        """Names in the list of usable embeddings."""
        return set(self.get("/sdapi/v1/embeddings")["loaded"])

    def has_ti_fix(self) -> bool:
        """Whether ti_fix is installed there."""
        return "/ti_fix/v1/files" in self.get("/openapi.json")["paths"]

    def components(self) -> dict[str, int]:
        """Element id -> number of each component of the page."""
        found = self.get("/config")["components"]
        return {c["props"]["elem_id"]: c["id"] for c in found if c.get("props", {}).get("elem_id")}

    def versions(self) -> dict[str, str]:
        """What the foot of the page says: repository, version, python, torch, gradio; empty without a page."""
        try:
            found = self.get("/config")["components"]
        except Failed:
            return {}
        foot = next((c["props"].get("value") for c in found if c.get("props", {}).get("elem_id") == "footer"), "")
        told = dict(FOOT.findall(str(foot)))
        repository = REPOSITORY.search(str(foot))
        return {**told, "repository": repository[1]} if repository else told


def _reason(body: bytes) -> str:
    """The sentence in an error's JSON, or its beginning."""
    text = body.decode(errors="replace")
    try:
        told = json.loads(text)
    except ValueError:
        return text[:200]
    return str(told.get("errors") or told.get("detail") or text)[:200] if isinstance(told, dict) else text[:200]
