// SPDX-License-Identifier: GPL-2.0
// Makes records in a map, as a load for benchmarks, and replaces half of them, as objects.py does.
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

public class Objects {
	private final int number;
	private final String name;
	private final List<String> words = new ArrayList<>();

	Objects(int number) {
		this.number = number;
		name = "name of " + number;
		for (int i = 0; i < number % 7; i++)
			words.add("word " + (number + i));
	}

	public static void main(String[] args) {
		int count = Integer.parseInt(args[0]);
		Map<String, Objects> table = new HashMap<>();
		List<String> names = new ArrayList<>();

		for (int n = 0; n < count; n++)
			table.put("key " + n, new Objects(n));
		for (int n = 0; n < count; n += 2)
			table.put("key " + n, new Objects(n + count));
		for (Objects row : table.values())
			names.add(row.name + row.number);
		names.sort(null);
		System.out.println(names.size() + " " + names.get(0));
	}
}
