// SPDX-License-Identifier: GPL-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"
)

func TestAnnotations(t *testing.T) {
	all := map[string]string{
		Key: "plain", Key + "/pod": "pod", Key + "/container.web": "own", "other": "no",
	}
	for _, test := range []struct {
		container, without, want string
	}{
		{"web", "", "own"},
		{"db", "", "pod"},
		{"web", Key + "/container.web", "pod"},
		{"db", Key + "/pod", "plain"},
		{"web", "", "own"},
	} {
		given := map[string]string{}
		for key, value := range all {
			if key != test.without {
				given[key] = value
			}
		}
		if got := profileFor(given, test.container); got != test.want {
			t.Errorf("%s without %q: %q, not %q", test.container, test.without, got, test.want)
		}
	}
	if got := profileFor(map[string]string{Key + "/container.web": ""}, "web"); got != "" {
		t.Errorf("an empty annotation asks for %q", got)
	}
	if got := profileFor(map[string]string{Key: "all", Key + "/pod": ""}, "web"); got != "" {
		t.Errorf("an empty annotation does not end what is said of more: %q", got)
	}
}

func TestCgroups(t *testing.T) {
	for given, want := range map[string]string{
		"/kubepods/burstable/pod1/c1":                        "/kubepods/burstable/pod1/c1",
		"kubepods/pod1/c1":                                   "/kubepods/pod1/c1",
		"kubepods-burstable-pod1_2.slice:cri-containerd:abc": "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-abc.scope",
		":cri-containerd:abc":                                "/system.slice/cri-containerd-abc.scope",
		"-.slice:crio:abc":                                   "/crio-abc.scope",
		"a.slice:x:a-b.slice":                                "/a.slice/a-b.slice",
		"/../../../etc":                                      "/etc",
	} {
		m := newModel(t)
		id := m.cgroup(want)
		found, err := m.Host.Cgroup(given)
		m.want(given, err, nil)
		m.want(given, found.Path, want)
		m.want(given, fmt.Sprint(found.ID), id)
	}
	m := newModel(t)
	for _, given := range []string{"", "/none", "a.slice:b:c"} {
		if _, err := m.Host.Cgroup(given); !errors.Is(err, errNoCgroup) {
			t.Errorf("%q: %v", given, err)
		}
	}
}

// rig is a plugin on a model, with one pod.
type rig struct {
	*Model
	plugin *Plugin
	told   []string
	pod    *api.PodSandbox
}

func newRig(t *testing.T, profiles ...string) *rig {
	r := &rig{Model: newModel(t, profiles...)}
	r.pod = &api.PodSandbox{
		Id: "pod", Name: "shop", Namespace: "prod", Uid: "u1",
		Annotations: map[string]string{Key: "web"},
	}
	r.restart()
	return r
}

// restart starts the plugin anew: all that it knew is gone.
func (r *rig) restart() {
	binder := NewBinder(r.Host, "nri", NewMetrics())
	binder.Tell = func(pod Pod, container string, err error) {
		r.told = append(r.told, fmt.Sprintf("%s/%s %s %v", pod.Namespace, pod.Name, container, err))
	}
	r.plugin = &Plugin{binder}
}

func container(name string, state api.ContainerState) *api.Container {
	return &api.Container{
		Id: "id-" + name, PodSandboxId: "pod", Name: name, State: state,
		Linux: &api.LinuxContainer{CgroupsPath: "/pods/" + name},
	}
}

func (r *rig) start(name string) (id string) {
	r.Helper()
	id = r.cgroup("/pods/" + name)
	one := container(name, api.ContainerState_CONTAINER_CREATED)
	r.want("start", r.plugin.StartContainer(context.Background(), r.pod, one), nil)
	return id
}

func (r *rig) synchronize(containers ...*api.Container) {
	r.Helper()
	_, err := r.plugin.Synchronize(context.Background(), []*api.PodSandbox{r.pod}, containers)
	r.want("synchronize", err, nil)
}

func (r *rig) metric(line string) {
	r.Helper()
	if text := r.plugin.Binder.Metrics.Text(); !strings.Contains(text, "\n"+line+"\n") {
		r.Errorf("no %q in\n%s", line, text)
	}
}

const running = api.ContainerState_CONTAINER_RUNNING

func TestStartAndStop(t *testing.T) {
	r := newRig(t, "web", "db")
	r.pod.Annotations[Key+"/container.b"] = "db"
	a, b := r.start("a"), r.start("b")
	r.want("a", r.bound[a], "web")
	r.want("b", r.bound[b], "db")
	for _, line := range []string{a + " web /pods/a\n", b + " db /pods/b\n"} {
		r.want(line, strings.Contains(r.written(), line), true)
	}
	r.metric(`mmpolicy_nri_containers{profile="db"} 1`)
	r.removed("/pods/a", a)
	r.plugin.StopContainer(context.Background(), r.pod, container("a", running))
	r.want("after the stop", r.written(), b+" db /pods/b\n")
	r.plugin.RemoveContainer(context.Background(), r.pod, container("a", running))
	// Its cgroup is still there.
	r.plugin.RemoveContainer(context.Background(), r.pod, container("b", running))
	r.want("at the end", r.written(), "")
	r.want("bindings", len(r.bound), 0)
	r.want("told", len(r.told), 0)
}

func TestWithoutAnnotation(t *testing.T) {
	r := newRig(t, "web")
	r.pod.Annotations = nil
	r.start("a")
	r.synchronize(container("a", running))
	r.want("bindings", len(r.bound), 0)
	r.metric("mmpolicy_nri_containers_without 0")
}

func TestWhatStandsInTheWay(t *testing.T) {
	for _, test := range []struct {
		name, reason string
		plant        func(r *rig)
		cure         func(r *rig)
	}{
		{"profile", "unknown_profile",
			func(r *rig) { os.RemoveAll(r.real(control + "/profiles/web")) },
			func(r *rig) { r.put(control+"/profiles/web/cgroups", "") }},
		{"bad name", "unknown_profile",
			func(r *rig) { r.pod.Annotations[Key] = "web /x\n1 default" }, nil},
		{"way out", "unknown_profile",
			func(r *rig) { r.pod.Annotations[Key] = "../profiles/web" }, nil},
		{"module", "no_module",
			func(r *rig) { os.Remove(r.real(control + "/state")) },
			func(r *rig) { r.put(control+"/state", "stock\n") }},
		{"lease", "lease_expired",
			func(r *rig) { r.put(control+"/state", "expired\n") },
			func(r *rig) { r.put(control+"/state", "active\n") }},
		{"lease, at the write", "lease_expired",
			func(r *rig) { r.fail = syscall.EBUSY }, func(r *rig) { r.fail = nil }},
		{"deleted, at the write", "unknown_profile",
			func(r *rig) { r.fail = syscall.ENODEV }, func(r *rig) { r.fail = nil }},
		{"gone, at the write", "no_cgroup",
			func(r *rig) { r.fail = syscall.ENOENT }, func(r *rig) { r.fail = nil }},
		{"memory", "refused",
			func(r *rig) { r.fail = syscall.ENOMEM }, func(r *rig) { r.fail = nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, "web")
			test.plant(r)
			id := r.start("a") // which is not refused
			r.plugin.Binder.Heal()
			r.plugin.Binder.Heal()
			r.want("bindings", len(r.bound), 0)
			r.want("told once", len(r.told), 1)
			r.metric(fmt.Sprintf(`mmpolicy_nri_refused_total{reason=%q} 1`, test.reason))
			r.metric("mmpolicy_nri_containers_without 1")
			if test.cure == nil {
				r.want("written", r.written(), "")
				return
			}
			test.cure(r)
			r.plugin.Binder.Heal()
			r.want("healed", r.bound[id], "web")
			r.metric("mmpolicy_nri_containers_without 0")
			r.metric("mmpolicy_nri_bindings_total 1")
		})
	}
}

func TestNoPlaceForTheFile(t *testing.T) {
	r := newRig(t, "web")
	r.put("/run/mmpolicy/owners", "a file where a folder is to be")
	id := r.start("a")
	r.want("bound all the same", r.bound[id], "web")
	r.metric(`mmpolicy_nri_refused_total{reason="not_written_down"} 1`)
}

func TestRestart(t *testing.T) {
	r := newRig(t, "web", "db")
	stays, gone, stopped, changed := r.start("stays"), r.start("gone"), r.start("stopped"), r.start("changed")
	missed := r.cgroup("/pods/missed") // started while we were away
	caught := r.cgroup("/pods/caught") // about to start
	r.removed("/pods/gone", gone)      // last, as its inode number would be used again
	r.pod.Annotations[Key+"/container.changed"] = "db"
	r.restart()
	r.synchronize(
		container("stays", running), container("missed", running), container("changed", running),
		container("stopped", api.ContainerState_CONTAINER_STOPPED),
		container("caught", api.ContainerState_CONTAINER_CREATED),
		container("later", api.ContainerState_CONTAINER_CREATED),
	)
	for id, want := range map[string]string{
		stays: "web", missed: "web", caught: "web", changed: "db", stopped: "", gone: "",
	} {
		r.want(id, r.bound[id], want)
	}
	r.want("lines", strings.Count(r.written(), "\n"), 4)
	r.want("told", len(r.told), 0)
	r.metric("mmpolicy_nri_connected 1")
	r.metric("mmpolicy_nri_bindings_total 3") // what was bound as it should be was left alone
	// The runtime starts anew, and has fewer.
	r.synchronize(container("stays", running))
	r.want("lines", r.written(), stays+" web /pods/stays\n")
	r.want("bindings", len(r.bound), 1)
}

func TestPathOfAnother(t *testing.T) {
	r := newRig(t, "web")
	old := r.start("a")
	r.removed("/pods/a", old)
	r.restart()
	r.cgroup("/pods/between") // so that the inode number is not used again
	id := r.start("a")
	r.synchronize(container("a", running))
	r.want("new", r.bound[id], "web")
	r.want("written", r.written(), id+" web /pods/a\n")
}

// At each moment of a start the plugin may be killed: after it, mmpolicy has an owner's file that
// it can read, and the next plugin has all in force.
func TestKilled(t *testing.T) {
	for _, half := range []string{"", "12", "123 web /pods/b"} {
		r := newRig(t, "web")
		a := r.start("a")
		before := r.written()
		b := r.cgroup("/pods/b")
		r.put(owners+"/nri.new", half) // killed in the write
		r.restart()
		r.want("the old file", r.written(), before)
		r.synchronize(container("a", running), container("b", running))
		r.want("a", r.bound[a], "web")
		r.want("b", r.bound[b], "web")
		r.want("lines", strings.Count(r.written(), "\n"), 2)
	}
	// Killed between the line and the binding.
	r := newRig(t, "web")
	b := r.cgroup("/pods/b")
	r.put(owners+"/nri", b+" web /pods/b\n")
	r.synchronize(container("b", running))
	r.want("b", r.bound[b], "web")
	// A damaged file.
	r.put(owners+"/nri", "nonsense\n\n1 2\nx web /pods/b\n"+b+" web /pods/b")
	r.restart()
	r.synchronize()
	r.want("bindings", len(r.bound), 0)
	r.want("written", r.written(), "")
}

// The line is there before the binding, so that apply never meets one without.
func TestOrder(t *testing.T) {
	r := newRig(t, "web")
	real, seen := r.Host.Store, ""
	r.plugin.Binder.Host.Store = func(file, text string) error {
		seen = r.written()
		return real(file, text)
	}
	id := r.start("a")
	r.want("as it was bound", seen, id+" web /pods/a\n")
}

func TestAManifestGoesBefore(t *testing.T) {
	r := newRig(t, "web", "db")
	id := r.start("a")
	r.store(control+"/profiles/db/cgroups", id) // apply of a manifest that names it
	r.plugin.Binder.Heal()
	r.want("a", r.bound[id], "db")
	delete(r.bound, id) // a reset
	r.show()
	r.plugin.Binder.Heal()
	r.want("a", r.bound[id], "web")
	// Nor is it taken over by a plugin that has lost its file.
	r.store(control+"/profiles/db/cgroups", id)
	os.Remove(r.real(owners + "/nri"))
	r.restart()
	r.synchronize(container("a", running))
	r.want("a", r.bound[id], "db")
}
