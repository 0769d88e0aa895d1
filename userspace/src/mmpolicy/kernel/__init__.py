# SPDX-License-Identifier: GPL-2.0
"""What a kernel is like that need not run: its image, types and symbols."""
