"""Adapters: each speaks one host's language and answers the questions of `ti_fix.protocols`."""
