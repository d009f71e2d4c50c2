"""What runs inside a WebUI that was started for a test; see `scripts/ti_fix_inside.py`."""
