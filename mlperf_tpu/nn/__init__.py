"""Layers and ops that know about distribution."""
