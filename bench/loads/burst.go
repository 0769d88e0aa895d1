// SPDX-License-Identifier: GPL-2.0

// burst FOLDER VALUES KEPT: makes values, drops all but one in KEPT, and sums these up.
//
// A step begins when its file appears: FOLDER/burst, then FOLDER/drop, then FOLDER/sum, as often
// as this file is made. At the end of a step, the program writes its answer to FOLDER/STEP.done.
package main

import (
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"
)

func await(word string, act func() string) {
	path := filepath.Join(os.Args[1], word)
	for os.Remove(path) != nil {
		time.Sleep(100 * time.Millisecond)
	}
	if err := os.WriteFile(path+".done", []byte(act()+"\n"), 0o644); err != nil {
		panic(err)
	}
}

func fill(table map[int][]byte, count int) {
	for n := 0; n < count; n++ {
		value := make([]byte, 100+n%1000)
		for i := range value {
			value[i] = byte(n + i)
		}
		table[n] = value
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		panic(err)
	}
	return n
}

func main() {
	values, kept := number(os.Args[2]), number(os.Args[3])
	table := make(map[int][]byte)
	await("burst", func() string { fill(table, values); return strconv.Itoa(len(table)) })
	await("drop", func() string {
		for n := range table {
			if n%kept > 0 {
				delete(table, n)
			}
		}
		runtime.GC()
		return strconv.Itoa(len(table))
	})
	for {
		await("sum", func() string {
			sum := fnv.New64a()
			for n := 0; n < values; n += kept {
				sum.Write(table[n])
			}
			return fmt.Sprint(len(table), sum.Sum64())
		})
	}
}
