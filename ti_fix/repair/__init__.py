"""What is wrong with an embedding for a given model, and the embedding without it."""

from ti_fix.repair.clean import carries, clean, too_long, write_clean
from ti_fix.repair.defects import additions
from ti_fix.repair.in_place import Replaced, repair_in_place, repairable, undo
from ti_fix.repair.result import RepairResult, Verdict, diagnose, repair
from ti_fix.repair.scan import Judged, name_clashes, scan
from ti_fix.repair.split import split

__all__ = [
    "Judged",
    "RepairResult",
    "Replaced",
    "Verdict",
    "additions",
    "carries",
    "clean",
    "diagnose",
    "name_clashes",
    "repair",
    "repair_in_place",
    "repairable",
    "scan",
    "split",
    "too_long",
    "undo",
    "write_clean",
]
