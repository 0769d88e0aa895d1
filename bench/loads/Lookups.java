// SPDX-License-Identifier: GPL-2.0
// A service with a big map. For each number N on its input, it makes requests to itself for N
// seconds. A request is 50 reads and 10 writes at random. It then prints a line: the number of
// requests, quantiles of their nanoseconds (0.5, 0.95, 0.99, 0.999, the longest), and a check sum.

import java.util.Arrays;
import java.util.HashMap;
import java.util.Random;
import java.util.Scanner;

class Lookups {
	static final int READS = 50, WRITES = 10, SIZE = 200, MOST = 4_000_000;

	public static void main(String[] words) {
		int values = Integer.parseInt(words[0]);
		HashMap<Integer, byte[]> map = new HashMap<>(values * 2);
		long[] took = new long[MOST];
		Random random = new Random(1);
		Scanner input = new Scanner(System.in);

		for (int n = 0; n < values; n++)
			map.put(n, new byte[SIZE]);
		System.gc();
		System.out.println("ready");
		while (input.hasNextInt()) {
			long end = System.nanoTime() + input.nextInt() * 1_000_000_000L, now, sum = 0;
			int done = 0;

			for (long last = System.nanoTime(); last < end && done < MOST; last = now) {
				for (int n = 0; n < READS; n++)
					sum += map.get(random.nextInt(values))[n];
				for (int n = 0; n < WRITES; n++)
					map.put(random.nextInt(values), new byte[SIZE]);
				now = System.nanoTime();
				took[done++] = now - last;
			}
			print(Arrays.copyOf(took, done), sum);
		}
	}

	static void print(long[] took, long sum) {
		StringBuilder line = new StringBuilder();

		Arrays.sort(took);
		line.append(took.length);
		for (double part : new double[] { 0.5, 0.95, 0.99, 0.999, 1 })
			line.append(' ').append(took[(int) Math.min(took.length - 1, took.length * part)]);
		System.out.println(line.append(' ').append(sum));
	}
}
