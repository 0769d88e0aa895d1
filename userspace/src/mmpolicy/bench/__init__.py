# SPDX-License-Identifier: GPL-2.0
"""`mmpolicy bench`: run whole programs under one memory setting after another."""
