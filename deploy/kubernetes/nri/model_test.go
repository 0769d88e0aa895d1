// SPDX-License-Identifier: GPL-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Model is a host made of files, with the module loaded; it answers writes as
// docs/sysfs-abi.txt says.
type Model struct {
	*testing.T
	Host
	bound map[string]string // by id
	fail  error             // what the next writes are answered with
}

func newModel(t *testing.T, profiles ...string) *Model {
	m := &Model{T: t, bound: map[string]string{}}
	m.Host = Host{t.TempDir(), m.store}
	m.put(control+"/state", "active\n")
	for _, name := range append(profiles, "default") {
		m.put(control+"/profiles/"+name+"/cgroups", "")
	}
	return m
}

func (m *Model) put(name, text string) {
	m.Helper()
	os.MkdirAll(filepath.Dir(m.real(name)), 0o755)
	if err := os.WriteFile(m.real(name), []byte(text), 0o644); err != nil {
		m.Fatal(err)
	}
}

// cgroup makes one, and returns its id.
func (m *Model) cgroup(where string) string {
	m.Helper()
	if err := os.MkdirAll(m.real(cgroups+where), 0o755); err != nil {
		m.Fatal(err)
	}
	found, err := m.Host.Cgroup(where)
	if err != nil {
		m.Fatal(err)
	}
	return fmt.Sprint(found.ID)
}

// removed takes a cgroup away, and its binding with it, as the kernel does.
func (m *Model) removed(where, id string) {
	os.Remove(m.real(cgroups + where))
	delete(m.bound, id)
	m.show()
}

func (m *Model) store(file, text string) error {
	if m.fail != nil {
		return m.fail
	}
	profile, id := filepath.Base(filepath.Dir(file)), strings.TrimSpace(text)
	if id, ends := strings.CutPrefix(id, "-"); ends {
		if m.bound[id] != profile {
			return syscall.ENOENT
		}
		delete(m.bound, id)
	} else {
		m.bound[id] = profile
	}
	m.show()
	return nil
}

// show writes the files as the module shows them.
func (m *Model) show() {
	lists, _ := filepath.Glob(m.real(control + "/profiles/*/cgroups"))
	for _, list := range lists {
		text := ""
		for id, profile := range m.bound {
			if profile == filepath.Base(filepath.Dir(list)) {
				text += id + "\n"
			}
		}
		os.WriteFile(list, []byte(text), 0o644)
	}
}

// written returns what mmpolicy reads of the owner.
func (m *Model) written() string {
	text, _ := os.ReadFile(m.real(owners + "/nri"))
	return string(text)
}

func (m *Model) want(what string, got, want any) {
	m.Helper()
	if got != want {
		m.Errorf("%s: %v, not %v", what, got, want)
	}
}
