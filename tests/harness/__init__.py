# SPDX-License-Identifier: GPL-2.0
"""Tests of the laboratory, of ./dev and of the benchmarks, without a guest."""
