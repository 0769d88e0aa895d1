// SPDX-License-Identifier: GPL-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"sort"
	"strings"
	"sync"
)

// Metrics is what Prometheus is told.
type Metrics struct {
	mutex      sync.Mutex
	bound      int
	refused    map[string]int
	containers map[string]int
	waiting    int
	connected  bool
}

// NewMetrics returns metrics of nothing yet.
func NewMetrics() *Metrics { return &Metrics{refused: map[string]int{}} }

// Bound counts a binding that was made.
func (m *Metrics) Bound() { m.change(func() { m.bound++ }) }

// Refused counts a container that has no profile, for this reason.
func (m *Metrics) Refused(reason string) { m.change(func() { m.refused[reason]++ }) }

// Containers sets how many there are by profile, and how many have none yet.
func (m *Metrics) Containers(counts map[string]int, waiting int) {
	m.change(func() { m.containers, m.waiting = counts, waiting })
}

// Connected tells if the runtime has us.
func (m *Metrics) Connected(now bool) { m.change(func() { m.connected = now }) }

func (m *Metrics) change(how func()) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	how()
}

func (m *Metrics) ServeHTTP(writer http.ResponseWriter, _ *http.Request) {
	writer.Header().Set("Content-Type", "text/plain; version=0.0.4")
	io.WriteString(writer, m.Text())
}

// Text returns all of it in the format of Prometheus.
func (m *Metrics) Text() string {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	connected := map[bool]int{true: 1}[m.connected]
	return family("connected", "gauge", "1: the container runtime has the plugin.",
		"", map[string]int{"": connected}) +
		family("bindings_total", "counter", "Cgroups of containers that were bound.",
			"", map[string]int{"": m.bound}) +
		family("refused_total", "counter", "Containers that run without their profile, by reason.",
			"reason", m.refused) +
		family("containers", "gauge", "Containers that ask for a profile and have it.",
			"profile", m.containers) +
		family("containers_without", "gauge", "Containers that ask for a profile and have none.",
			"", map[string]int{"": m.waiting})
}

func family(name, kind, help, label string, values map[string]int) string {
	var text strings.Builder
	name = "mmpolicy_nri_" + name
	fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
	for _, value := range sorted(values) {
		labels := ""
		if label != "" {
			labels = fmt.Sprintf("{%s=%q}", label, value)
		}
		fmt.Fprintf(&text, "%s%s %d\n", name, labels, values[value])
	}
	return text.String()
}

func sorted(values map[string]int) []string {
	var names []string
	for name := range values {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}
