// SPDX-License-Identifier: GPL-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

const owners = "/run/mmpolicy/owners"

// Binding is a cgroup and the profile that is to decide for it.
type Binding struct {
	Profile string
	Group   Cgroup
}

// Owner is the file that tells mmpolicy which bindings are ours: a line "ID PROFILE PATH" for
// each. Only we write it. A line is written before its cgroup is bound: mmpolicy apply reads the
// bindings first and then the lines, so it never meets a binding of ours without its line, and we
// need no lock that a pod would have to wait for.
type Owner struct {
	Host Host
	Name string
}

func (o Owner) file() string { return o.Host.real(owners + "/" + o.Name) }

// Read returns what is written there of cgroups that are still there; a line that is no binding
// is passed over.
func (o Owner) Read() map[uint64]Binding {
	found := map[uint64]Binding{}
	text, _ := os.ReadFile(o.file())
	for _, line := range strings.Split(string(text), "\n") {
		parts := strings.SplitN(line, " ", 3)
		if len(parts) < 3 {
			continue
		}
		id, err := strconv.ParseUint(parts[0], 10, 64)
		group := Cgroup{id, parts[2]}
		if err == nil && o.Host.Lives(group) {
			found[id] = Binding{parts[1], group}
		}
	}
	return found
}

// Write replaces the file. A crash leaves the old one or the new one; the name of a file that is
// not whole is no name of an owner, so nobody reads it.
func (o Owner) Write(bindings map[string]Binding) error {
	var lines []string
	for _, each := range bindings {
		lines = append(lines, fmt.Sprintf("%d %s %s\n", each.Group.ID, each.Profile, each.Group.Path))
	}
	sort.Strings(lines)
	if err := os.MkdirAll(filepath.Dir(o.file()), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(o.file()+".new", []byte(strings.Join(lines, "")), 0o644); err != nil {
		return err
	}
	return os.Rename(o.file()+".new", o.file())
}
