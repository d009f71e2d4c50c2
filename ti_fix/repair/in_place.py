"""Repair of files where they lie, with the originals kept and a way back."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ti_fix.errors import TiFixError, WrongUse
from ti_fix.formats.write import file_name, to_bytes, write_bytes
from ti_fix.repair.clean import clean, too_long
from ti_fix.repair.names import fold
from ti_fix.repair.scan import Judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """What a repair has done to the disk; enough to undo it.

    Attributes:
        written: new file -> SHA-256 of what was written, in hexadecimal digits.
        kept: original file -> where it is kept.
    """

    written: tuple[tuple[Path, str], ...]
    kept: tuple[tuple[Path, Path], ...]


def repairable(judged: Judged) -> bool:
    """Whether writing a clean file changes anything for the better."""
    if too_long(judged):
        return True
    renames = any(f.code in ("prompt-syntax", "keyword") for f in judged.result.findings)
    return judged.result.usable and (judged.result.changed or renames)


def repair_in_place(judged: Judged, *, root: Path, backups: Path) -> Replaced:
    """Put clean files beside the originals and move the originals to a backup folder.

    Either all of it is done or nothing. More than 75 vectors are cut into parts.

    Args:
        judged: the file or pair of files, with its vectors.
        root: the embeddings folder, whose sub-folders the backup repeats.
        backups: folder for the originals; an original is kept as ``name.bak``, a second one as ``name.2.bak``.

    Raises:
        WrongUse: there is nothing to repair, or it cannot be used at all.
        TiFixError: another file has the name, or the disk does not take it.
    """
    originals = judged.parsed.paths
    if not repairable(judged):
        why = "it is fine as it is" if judged.result.usable else "nothing in it can be used"
        raise WrongUse(f"{originals[0].name}: there is nothing to repair, {why}.")
    new = {
        originals[0].parent / f"{file_name(each.name)}.safetensors": to_bytes(each)
        for each in clean(judged, split_long=True)
    }
    for path in new:
        if os.path.lexists(path) and not _is_one_of(path, originals):
            raise TiFixError(
                f"{path} exists already and is another file; rename one of the two, refresh the list and try again."
            )
    places = [(original, _free(backups / original.parent.relative_to(root), original.name)) for original in originals]
    kept: list[tuple[Path, Path]] = []
    written: list[Path] = []
    try:
        for original, place in places:
            _keep(original, place)
            kept.append((original, place))
        for path, data in new.items():
            write_bytes(path, data, overwrite=True)
            written.append(path)
        for original in originals:
            if not _is_one_of(original, written):
                original.unlink()
    except (OSError, TiFixError) as error:
        _take_back(written, kept)
        if isinstance(error, TiFixError):
            raise
        raise _told(originals[0], error) from error
    digests = tuple((path, hashlib.sha256(data).hexdigest()) for path, data in new.items())
    return Replaced(written=digests, kept=tuple(kept))


def undo(replaced: Replaced) -> tuple[Path, ...]:
    """Put the originals back and remove what had been written.

    Returns:
        The originals.

    Raises:
        TiFixError: a file was changed since then, or a backup is gone; then nothing is touched.
    """
    for path, digest in replaced.written:
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            raise TiFixError(f"{path} was changed or removed after the repair; put its original back by hand.")
    for original, place in replaced.kept:
        if not os.path.lexists(place):
            raise TiFixError(f"The backup {place} is gone, so {original.name} cannot be put back.")
    try:
        for path, _ in replaced.written:
            if path not in [original for original, _ in replaced.kept]:
                path.unlink()
        for original, place in replaced.kept:
            place.replace(original)
            _remove_empty(place.parents)
    except OSError as error:
        raise _told(replaced.kept[0][0], error) from error
    return tuple(original for original, _ in replaced.kept)


def _is_one_of(path: Path, others: Iterable[Path]) -> bool:
    """Whether two names are one file: equal, or different only by case where the disk does not mind."""
    for other in others:
        if path == other:
            return True
        if fold(path.name) == fold(other.name):
            with contextlib.suppress(OSError):
                if path.samefile(other):
                    return True
    return False


def _free(folder: Path, name: str) -> Path:
    return next(place for place in _places(folder, name) if not os.path.lexists(place))


def _places(folder: Path, name: str) -> Iterator[Path]:
    yield folder / f"{name}.bak"
    number = 2
    while True:
        yield folder / f"{name}.{number}.bak"
        number += 1


def _keep(original: Path, place: Path) -> None:
    """The original under a second name; a copy where the disk knows no second names."""
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(original, place, follow_symlinks=False)
    except FileExistsError:
        raise
    except (OSError, NotImplementedError):
        shutil.copy2(original, place, follow_symlinks=False)


def _remove_empty(folders: Iterable[Path]) -> None:
    """Remove folders from the innermost on until one is in use."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _take_back(written: Iterable[Path], kept: Iterable[tuple[Path, Path]]) -> None:
    originals = [original for original, _ in kept]
    for path in written:
        if path not in originals:
            path.unlink(missing_ok=True)
    for original, place in kept:
        if os.path.lexists(original) and place.samefile(original):
            place.unlink()  # one file under two names: a rename would leave both
        else:
            place.replace(original)


def _told(path: Path, error: OSError) -> TiFixError:
    if error.errno == errno.ENOSPC:
        return TiFixError(f"{path} was not repaired: the disk is full; free some space and try again.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return TiFixError(f"{path} was not repaired: there is no permission to write in its folder.")
    return TiFixError(f"{path} was not repaired: {error.strerror or error}.")
