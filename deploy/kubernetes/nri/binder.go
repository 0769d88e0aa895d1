// SPDX-License-Identifier: GPL-2.0

package main

import (
	"errors"
	"log"
	"sync"
)

// Asked is what a pod asks for: a profile for the cgroup of a container, as the runtime names it.
type Asked struct {
	Pod       Pod
	Container string // its name
	Profile   string
	Cgroup    string
}

// Pod is what an event of Kubernetes is about.
type Pod struct{ Namespace, Name, UID string }

// Binder keeps the bindings of containers in force. It never fails: a pod starts without its
// profile rather than not at all.
type Binder struct {
	Host    Host
	Owner   Owner
	Metrics *Metrics
	Tell    func(Pod, string, error) // of what stands in the way, once for each container

	mutex   sync.Mutex
	asked   map[string]Asked   // by the id of the container
	made    map[string]Binding // those of them that are written down
	refused map[string]string  // why the others are not in force
}

// NewBinder returns one that knows of no container yet.
func NewBinder(host Host, owner string, metrics *Metrics) *Binder {
	return &Binder{
		Host: host, Owner: Owner{host, owner}, Metrics: metrics,
		Tell:  func(Pod, string, error) {},
		asked: map[string]Asked{}, made: map[string]Binding{}, refused: map[string]string{},
	}
}

// Add binds a container that is about to start. Its cgroup is there by now.
func (b *Binder) Add(id string, asked Asked) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.asked[id] = asked
	b.bind(id)
	b.count()
}

// Remove forgets a container, and ends its binding if its cgroup is still there.
func (b *Binder) Remove(id string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if _, known := b.asked[id]; !known {
		return
	}
	made, bound := b.made[id]
	b.forget(id)
	if bound {
		b.unbind(made)
		b.keep()
	}
	b.count()
}

// Replace takes over all containers of the runtime, as after a restart of ours or of the
// runtime: it binds what asks for it, and unbinds what we had bound and nobody asks for now.
func (b *Binder) Replace(all map[string]Asked) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for id := range b.asked {
		if _, there := all[id]; !there {
			b.forget(id)
		}
	}
	before := b.Owner.Read()
	for id, asked := range all {
		b.asked[id] = asked
		group, err := b.Host.Cgroup(asked.Cgroup)
		if wanted := (Binding{asked.Profile, group}); err == nil && before[group.ID] == wanted {
			b.made[id] = wanted
			delete(before, group.ID)
		}
	}
	for _, left := range before {
		b.unbind(left)
	}
	b.keep()
	b.heal()
}

// Heal binds again what is no longer bound, as after the end of a lease, a reset, or a load of
// the module. What somebody has bound to another profile meanwhile stays: a manifest that names
// the cgroup goes before us.
func (b *Binder) Heal() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.heal()
}

func (b *Binder) heal() {
	bound := b.Host.Bound()
	for id, asked := range b.asked {
		group, err := b.Host.Cgroup(asked.Cgroup)
		_, ours := b.made[id]
		if now := bound[group.ID]; err == nil && now != "" && (ours || now != asked.Profile) {
			continue
		}
		b.bind(id)
	}
	b.count()
}

func (b *Binder) bind(id string) {
	if err := b.try(id); err != nil {
		b.refuse(id, err)
		return
	}
	delete(b.refused, id)
	b.Metrics.Bound()
}

func (b *Binder) try(id string) error {
	asked := b.asked[id]
	group, err := b.Host.Cgroup(asked.Cgroup)
	if err != nil {
		return err
	}
	if err := b.Host.Check(asked.Profile); err != nil {
		return err
	}
	if wanted := (Binding{asked.Profile, group}); b.made[id] != wanted {
		b.made[id] = wanted
		b.keep()
	}
	return b.Host.Bind(asked.Profile, group)
}

// refuse counts and tells what stands in the way of a container, once for each reason.
func (b *Binder) refuse(id string, err error) {
	reason := reasonOf(err)
	if b.refused[id] == reason {
		return
	}
	b.refused[id] = reason
	asked := b.asked[id]
	b.Metrics.Refused(reason)
	log.Printf("%s/%s: container %s has no profile: %v", asked.Pod.Namespace, asked.Pod.Name,
		asked.Container, err)
	b.Tell(asked.Pod, asked.Container, err)
}

func reasonOf(err error) string {
	for _, known := range []error{errNoModule, errNoCgroup, errNoProfile, errExpired} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return errRefused.Error()
}

func (b *Binder) unbind(made Binding) {
	if !b.Host.Lives(made.Group) {
		return
	}
	if err := b.Host.Unbind(made.Profile, made.Group); err != nil {
		log.Printf("%s stays bound to %s: %v", made.Group.Path, made.Profile, err)
	}
}

func (b *Binder) forget(id string) {
	delete(b.asked, id)
	delete(b.made, id)
	delete(b.refused, id)
}

// keep writes down what is ours. A binding is made without it too: only apply would undo it.
func (b *Binder) keep() {
	if err := b.Owner.Write(b.made); err != nil {
		b.Metrics.Refused("not_written_down")
		log.Printf("mmpolicy apply may undo bindings: %v", err)
	}
}

func (b *Binder) count() {
	counts := map[string]int{}
	for id, asked := range b.asked {
		if _, refused := b.refused[id]; !refused {
			counts[asked.Profile]++
		}
	}
	b.Metrics.Containers(counts, len(b.refused))
}
