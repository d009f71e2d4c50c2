"""What is wrong with an embedding for a given model, and the embedding without it."""

from ti_fix.repair.result import RepairResult, Verdict, diagnose, repair
from ti_fix.repair.scan import Judged, scan
from ti_fix.repair.split import split

__all__ = ["Judged", "RepairResult", "Verdict", "diagnose", "repair", "scan", "split"]
