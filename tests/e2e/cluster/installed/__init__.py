"""Tests of kvpool as its users install it: the chart, labelled pods, and nothing of ours on this machine."""
