// SPDX-License-Identifier: GPL-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

const (
	control = "/sys/kernel/mmpolicy"
	cgroups = "/sys/fs/cgroup"
)

// What can stand in the way of a binding. The names are labels of a metric.
var (
	errNoModule  = errors.New("no_module")
	errNoCgroup  = errors.New("no_cgroup")
	errNoProfile = errors.New("unknown_profile")
	errExpired   = errors.New("lease_expired")
	errRefused   = errors.New("refused")
)

// profileName is what the module takes as a name, so no name leads out of its folder.
var profileName = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]{0,30}$`)

// Cgroup is a cgroup as mmpolicy names it: by the inode number of its directory.
type Cgroup struct {
	ID   uint64
	Path string // below the mount
}

// Host is the control tree and the cgroups of a host, below a root.
type Host struct {
	Root  string
	Store func(file, text string) error // does a write; tests have a model of the module
}

// NewHost returns the host below a root.
func NewHost(root string) Host { return Host{root, store} }

// store writes in one go to a file that is there.
func store(name, text string) error {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.WriteString(text)
	return err
}

func (h Host) real(name string) string { return filepath.Join(h.Root, name) }

// Cgroup finds the cgroup of a container, as the runtime writes it in the specification: a path,
// or SLICE:PREFIX:NAME if systemd makes it.
func (h Host) Cgroup(given string) (Cgroup, error) {
	where := path.Clean("/" + given)
	if parts := strings.Split(given, ":"); len(parts) == 3 {
		where = unitPath(parts[0], parts[1], parts[2])
	}
	found, err := os.Stat(h.real(cgroups + where))
	if given == "" || err != nil || !found.IsDir() {
		return Cgroup{}, fmt.Errorf("%w: there is no %s%s", errNoCgroup, cgroups, where)
	}
	return Cgroup{found.Sys().(*syscall.Stat_t).Ino, where}, nil
}

// unitPath returns where systemd puts a scope: a-b.slice is in a.slice.
func unitPath(slice, prefix, name string) string {
	where, outer := "", ""
	if slice == "" {
		slice = "system.slice"
	}
	for _, part := range strings.Split(strings.TrimSuffix(slice, ".slice"), "-") {
		if part != "" {
			outer += part
			where += "/" + outer + ".slice"
			outer += "-"
		}
	}
	if strings.HasSuffix(name, ".slice") {
		return path.Clean(where + "/" + name)
	}
	return path.Clean(where + "/" + prefix + "-" + name + ".scope")
}

// Lives tells if the cgroup is still there; its path may belong to another one by now.
func (h Host) Lives(group Cgroup) bool {
	now, err := h.Cgroup(group.Path)
	return err == nil && now.ID == group.ID
}

// Bind lets a profile decide for a cgroup.
func (h Host) Bind(profile string, group Cgroup) error {
	return h.write(profile, strconv.FormatUint(group.ID, 10))
}

// Unbind ends that. It is no error if there is no such binding.
func (h Host) Unbind(profile string, group Cgroup) error {
	err := h.write(profile, "-"+strconv.FormatUint(group.ID, 10))
	if errors.Is(err, errNoCgroup) || errors.Is(err, errNoProfile) {
		return nil
	}
	return err
}

// Check tells if cgroups can be bound to a profile now.
func (h Host) Check(profile string) error {
	state, err := os.ReadFile(h.real(control + "/state"))
	if err != nil {
		return fmt.Errorf("%w: there is no %s", errNoModule, control)
	}
	if strings.TrimSpace(string(state)) == "expired" {
		return fmt.Errorf("%w: mmpolicy reset acknowledges it", errExpired)
	}
	if !profileName.MatchString(profile) {
		return fmt.Errorf("%w: %q is no name of a profile", errNoProfile, profile)
	}
	if _, err := os.Stat(h.list(profile)); err != nil {
		return fmt.Errorf("%w: the host has no profile %q", errNoProfile, profile)
	}
	return nil
}

func (h Host) list(profile string) string {
	return h.real(control + "/profiles/" + profile + "/cgroups")
}

func (h Host) write(profile, text string) error {
	if err := h.Check(profile); err != nil {
		return err
	}
	return refusal(profile, h.Store(h.list(profile), text+"\n"))
}

// refusal says what an errno of a write means, see docs/sysfs-abi.txt.
func refusal(profile string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("%w: it has just been removed, or is not bound", errNoCgroup)
	case errors.Is(err, syscall.ENODEV):
		return fmt.Errorf("%w: profile %q has just been deleted", errNoProfile, profile)
	case errors.Is(err, syscall.EBUSY):
		return fmt.Errorf("%w: mmpolicy reset acknowledges it", errExpired)
	}
	return fmt.Errorf("%w: %v", errRefused, err)
}

// Bound returns the profile of each cgroup that is bound, whoever has bound it.
func (h Host) Bound() map[uint64]string {
	bound := map[uint64]string{}
	files, _ := filepath.Glob(h.real(control + "/profiles/*/cgroups"))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for _, word := range strings.Fields(string(text)) {
			if id, err := strconv.ParseUint(word, 10, 64); err == nil {
				bound[id] = filepath.Base(filepath.Dir(file))
			}
		}
	}
	return bound
}
