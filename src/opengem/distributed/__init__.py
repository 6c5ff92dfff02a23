"""Passes over an eager model: each takes a model and gives it back changed in how it runs, never in what it means."""
