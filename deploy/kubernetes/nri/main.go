// SPDX-License-Identifier: GPL-2.0

// The NRI plugin of mmpolicy: binds the containers of a node to profiles, by annotations of
// their pods.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"os/signal"
	"syscall"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

const (
	again = time.Second      // until the runtime is asked again to have us
	heal  = 10 * time.Second // from one look at the bindings to the next
)

func main() {
	root := flag.String("root", "/", "where the host's /sys and /run are")
	owner := flag.String("owner", "nri", "whose bindings they are, see mmpolicy bind --owner")
	socket := flag.String("socket", api.DefaultSocketPath, "of NRI")
	index := flag.String("index", "50", "its place among plugins, 00 to 99")
	listen := flag.String("listen", ":9464", "for metrics; empty for none")
	events := flag.Bool("events", false, "tell Kubernetes of pods without their profile")
	flag.Parse()
	log.SetFlags(0)

	context, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	metrics := NewMetrics()
	binder := NewBinder(NewHost(*root), *owner, metrics)
	if *events {
		binder.Tell = InCluster().Tell
	}
	if *listen != "" {
		go func() { log.Fatal(http.ListenAndServe(*listen, metrics)) }()
	}
	go every(context, heal, binder.Heal)
	every(context, again, func() { serve(context, &Plugin{binder}, *socket, *index) })
}

// serve answers the runtime until it closes the connection.
func serve(context context.Context, plugin *Plugin, socket, index string) {
	defer plugin.Binder.Metrics.Connected(false)
	// Without OnClose the library ends the process.
	runtime, err := stub.New(plugin, stub.WithPluginName("mmpolicy"), stub.WithPluginIdx(index),
		stub.WithSocketPath(socket), stub.WithOnClose(func() {}))
	if err == nil {
		err = runtime.Run(context)
	}
	if err != nil && context.Err() == nil {
		log.Printf("not connected to the runtime: %v", err)
	}
}

// every does something now, and again so long after it has ended.
func every(context context.Context, wait time.Duration, what func()) {
	for context.Err() == nil {
		what()
		select {
		case <-context.Done():
		case <-time.After(wait):
		}
	}
}
