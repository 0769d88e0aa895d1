# SPDX-License-Identifier: GPL-2.0
"""Tools of benchmarks and tests: guests, programs in them, and counted instructions."""
