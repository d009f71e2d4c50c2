"""The route ``POST /ti_fix/v1/convert``."""

from __future__ import annotations

import threading
from typing import Any

from ti_fix.convert import ConvertConfig
from ti_fix.embedding import family_name
from ti_fix.options import options
from ti_fix.ui.api import Refused, Values, confined_entries, wanted
from ti_fix.ui.convert_desk import Converted, as_dict, convert_desk_of
from ti_fix.ui.desk import Desk
from ti_fix.ui.forms import typed

SETTINGS = tuple(field.name for field, _ in options(ConvertConfig))


def convert_files(desk: Desk, values: Values) -> dict[str, Any]:
    """Convert embeddings for the loaded model, by ``id``, ``path`` or a list of ``ids``.

    ``to`` (sdxl or sd15, what is loaded), ``write`` (true: into new files, originals stay), and the settings of a
    conversion by their names.
    """
    room = convert_desk_of(desk)
    confined, _ = confined_entries(desk)
    to = values.get("to", room.family.name)
    if not isinstance(to, str) or family_name(to) != room.family.name:
        raise Refused(
            400, "wrong-value", f"to is {to!r}, but a {room.family.title} model is loaded; load one of that kind first."
        )
    config = typed(ConvertConfig(), {name: values[name] for name in SETTINGS if name in values})
    writing = desk.writing if values.get("write", True) else None
    events = room.events(wanted(confined, values), config, threading.Event(), writing=writing)
    root = desk.output_folder
    return {"results": [as_dict(each, root) for each in events if isinstance(each, Converted)]}
