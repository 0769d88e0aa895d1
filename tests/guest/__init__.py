# SPDX-License-Identifier: GPL-2.0
"""Tests in guests: by effect, on the kernels that ./dev kernel builds."""
