// SPDX-License-Identifier: GPL-2.0

package main

import (
	"context"

	"github.com/containerd/nri/pkg/api"
)

// Plugin is what the container runtime calls. No call fails: that would refuse the pod.
type Plugin struct{ Binder *Binder }

// Synchronize is called first, with all pods and containers that there are.
func (p *Plugin) Synchronize(
	_ context.Context, pods []*api.PodSandbox, containers []*api.Container,
) ([]*api.ContainerUpdate, error) {
	byID, all := map[string]*api.PodSandbox{}, map[string]Asked{}
	for _, pod := range pods {
		byID[pod.GetId()] = pod
	}
	for _, each := range containers {
		asked := askedBy(byID[each.GetPodSandboxId()], each)
		if asked.Profile != "" && p.runs(each, asked) {
			all[each.GetId()] = asked
		}
	}
	p.Binder.Replace(all)
	p.Binder.Metrics.Connected(true)
	return nil, nil
}

// runs tells if a container has a cgroup. One that is created has none, or is about to start:
// then StartContainer may have been called before we were there.
func (p *Plugin) runs(each *api.Container, asked Asked) bool {
	switch each.GetState() {
	case api.ContainerState_CONTAINER_STOPPED:
		return false
	case api.ContainerState_CONTAINER_CREATED:
		_, err := p.Binder.Host.Cgroup(asked.Cgroup)
		return err == nil
	}
	return true
}

// StartContainer is called when the OCI runtime has made the cgroup and waits in it, before it
// is told to run the program of the container. CreateContainer and PostCreateContainer are too
// early: there is no cgroup yet. PostStartContainer is too late.
func (p *Plugin) StartContainer(
	_ context.Context, pod *api.PodSandbox, container *api.Container,
) error {
	if asked := askedBy(pod, container); asked.Profile != "" {
		p.Binder.Add(container.GetId(), asked)
	}
	return nil
}

// StopContainer is called when its processes have ended.
func (p *Plugin) StopContainer(
	_ context.Context, _ *api.PodSandbox, container *api.Container,
) ([]*api.ContainerUpdate, error) {
	p.Binder.Remove(container.GetId())
	return nil, nil
}

// RemoveContainer is called for containers that have never been started, too.
func (p *Plugin) RemoveContainer(
	_ context.Context, _ *api.PodSandbox, container *api.Container,
) error {
	p.Binder.Remove(container.GetId())
	return nil
}

func askedBy(pod *api.PodSandbox, container *api.Container) Asked {
	return Asked{
		Pod:       Pod{pod.GetNamespace(), pod.GetName(), pod.GetUid()},
		Container: container.GetName(),
		Profile:   profileFor(pod.GetAnnotations(), container.GetName()),
		Cgroup:    container.GetLinux().GetCgroupsPath(),
	}
}
