/* SPDX-License-Identifier: GPL-2.0 */
/* Members are where the header has them. */
