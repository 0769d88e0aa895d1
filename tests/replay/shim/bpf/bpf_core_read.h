/* SPDX-License-Identifier: GPL-2.0 */
/* Empty: no member is relocated, as the header has the layout in use. */
