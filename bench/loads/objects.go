// SPDX-License-Identifier: GPL-2.0

// Makes records in a map, as a load for benchmarks, and replaces half of them, as objects.py does.
package main

import (
	"fmt"
	"os"
	"sort"
	"strconv"
)

type record struct {
	number int
	name   string
	words  []string
}

func newRecord(n int) *record {
	r := &record{number: n, name: "name of " + strconv.Itoa(n)}
	for i := 0; i < n%7; i++ {
		r.words = append(r.words, "word "+strconv.Itoa(n+i))
	}
	return r
}

func main() {
	count, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	table := make(map[string]*record)
	for n := 0; n < count; n++ {
		table["key "+strconv.Itoa(n)] = newRecord(n)
	}
	for n := 0; n < count; n += 2 {
		table["key "+strconv.Itoa(n)] = newRecord(n + count)
	}
	names := []string{}
	for _, r := range table {
		names = append(names, r.name)
	}
	sort.Strings(names)
	fmt.Println(len(names), names[0])
}
