# SPDX-License-Identifier: GPL-2.0
"""Tests in virtual machines (guests), on the kernels that ./dev kernel builds: they check
effects.
"""
