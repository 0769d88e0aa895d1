// SPDX-License-Identifier: GPL-2.0
// The program burst.go in Java: makes values, drops most of them, and sums up the others.
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Supplier;
import java.util.zip.CRC32;

public class Burst {
	private static Path folder;

	private static void await(String word, Supplier<String> act)
			throws IOException, InterruptedException {
		while (!Files.deleteIfExists(folder.resolve(word)))
			Thread.sleep(100);
		Files.writeString(folder.resolve(word + ".done"), act.get() + "\n");
	}

	private static void fill(Map<Integer, byte[]> table, int count) {
		for (int n = 0; n < count; n++) {
			byte[] value = new byte[100 + n % 1000];
			for (int i = 0; i < value.length; i++)
				value[i] = (byte) (n + i);
			table.put(n, value);
		}
	}

	private static String sum(Map<Integer, byte[]> table, int values, int kept) {
		CRC32 sum = new CRC32();
		for (int n = 0; n < values; n += kept)
			sum.update(table.get(n));
		return table.size() + " " + sum.getValue();
	}

	public static void main(String[] args) throws IOException, InterruptedException {
		int values = Integer.parseInt(args[1]), kept = Integer.parseInt(args[2]);
		Map<Integer, byte[]> table = new HashMap<>();

		folder = Path.of(args[0]);
		await("burst", () -> {
			fill(table, values);
			return "" + table.size();
		});
		await("drop", () -> {
			table.keySet().removeIf(n -> n % kept > 0);
			System.gc();
			return "" + table.size();
		});
		for (;;)
			await("sum", () -> sum(table, values, kept));
	}
}
