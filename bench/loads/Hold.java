// SPDX-License-Identifier: GPL-2.0
// Makes 200,000 small objects, and keeps them for the seconds that the first argument gives.
class Hold {
	static byte[][] kept = new byte[200_000][];

	public static void main(String[] words) throws Exception {
		for (int n = 0; n < kept.length; n++)
			kept[n] = new byte[100];
		Thread.sleep(1000 * Long.parseLong(words[0]));
	}
}
