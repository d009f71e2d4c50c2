"""Fetch and unpack the packages that hold the training pictures; their licences stand in docs/small-models.md."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

NPM = ("emoji-datasource-twitter@16.0.0", "emojilib@4.0.3", "@iconify-json/fluent-emoji-flat@1.2.6")
DEBIAN = ("fonts-noto-color-emoji", "openclipart-svg")


def fetch(work: Path) -> None:
    """Download what is missing under ``work/dl`` and unpack it to ``work/x`` and ``work/deb``. Needs npm and apt."""
    downloads = work / "dl"
    downloads.mkdir(parents=True, exist_ok=True)
    if not list(downloads.glob("*.tgz")):
        subprocess.run(["npm", "pack", *NPM], cwd=downloads, check=True, stdout=subprocess.DEVNULL)
    if not list(downloads.glob("*.deb")):
        subprocess.run(["apt-get", "download", *DEBIAN], cwd=downloads, check=True, stdout=subprocess.DEVNULL)
    for archive in downloads.glob("*.tgz"):
        target = work / "x" / archive.stem
        if not target.exists():
            with tarfile.open(archive) as tar:
                tar.extractall(target, filter="data")
    for package in downloads.glob("*.deb"):
        target = work / "deb" / package.name.split("_")[0]
        if not target.exists():
            subprocess.run(["dpkg-deb", "-x", str(package), str(target)], check=True)
