// SPDX-License-Identifier: GPL-2.0
// Makes records in a map, as a load for benchmarks, and replaces half of them, as objects.py does.
function record(n) {
  const words = Array.from({ length: n % 7 }, (_, i) => `word ${n + i}`);
  return { number: n, name: `name of ${n}`, words, half: n / 2 };
}

const count = Number(process.argv[2]);
const table = new Map();
for (let n = 0; n < count; n++) table.set(`key ${n}`, record(n));
for (let n = 0; n < count; n += 2) table.set(`key ${n}`, record(n + count));
const names = [...table.values()].map((row) => row.name).sort();
console.log(names.length, names[0]);
