"""Checking logs before anything is built from them: keys, times, labels, features, drift, and leaks."""
