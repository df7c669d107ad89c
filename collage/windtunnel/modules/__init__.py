"""Differentiable operators: what converters make of fitted ones."""
