"""Adapters: each speaks one host's language and answers `ti_fix.protocols.Host`."""
