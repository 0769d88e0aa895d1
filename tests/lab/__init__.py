# SPDX-License-Identifier: GPL-2.0
"""What benchmarks and tests work with: guests, programs in them, and counted instructions."""
