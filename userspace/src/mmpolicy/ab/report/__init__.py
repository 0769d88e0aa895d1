# SPDX-License-Identifier: GPL-2.0
"""Report an experiment: statistics, verdicts and pages. Needs the extra `ab`."""
