// SPDX-License-Identifier: GPL-2.0

package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"time"
)

// account is where a pod finds who it is to the API of its cluster.
const account = "/var/run/secrets/kubernetes.io/serviceaccount"

// Cluster is the API that is told of events. All that it takes is one POST, so there is no client
// library.
type Cluster struct {
	URL    string
	Token  func() (string, error) // Kubernetes renews it
	Client *http.Client
}

// InCluster returns the API of the cluster that this pod runs in.
func InCluster() *Cluster {
	pool := x509.NewCertPool()
	authority, err := os.ReadFile(account + "/ca.crt")
	if err != nil {
		log.Printf("Kubernetes will not be told of events: %v", err)
	}
	pool.AppendCertsFromPEM(authority)
	address := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"),
		os.Getenv("KUBERNETES_SERVICE_PORT"))
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	return &Cluster{
		URL:    "https://" + address,
		Token:  func() (string, error) { text, err := os.ReadFile(account + "/token"); return string(text), err },
		Client: &http.Client{Transport: transport, Timeout: 10 * time.Second},
	}
}

// Tell makes an event of a pod, and does not wait for the API.
func (c *Cluster) Tell(pod Pod, container string, reason error) {
	go func() {
		if err := c.post(pod, container, reason); err != nil {
			log.Printf("%s/%s: no event was made: %v", pod.Namespace, pod.Name, err)
		}
	}()
}

func (c *Cluster) post(pod Pod, container string, reason error) error {
	token, err := c.Token()
	if err != nil {
		return err
	}
	body, err := json.Marshal(event(pod, container, reason, time.Now().UTC()))
	if err != nil {
		return err
	}
	where := c.URL + "/api/v1/namespaces/" + pod.Namespace + "/events"
	request, err := http.NewRequest(http.MethodPost, where, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	answer, err := c.Client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusCreated {
		return fmt.Errorf("the API answers %s", answer.Status)
	}
	return nil
}

func event(pod Pod, container string, reason error, now time.Time) map[string]any {
	host, _ := os.Hostname()
	at := now.Format(time.RFC3339)
	return map[string]any{
		"apiVersion": "v1", "kind": "Event", "type": "Warning", "reason": "NoProfile", "count": 1,
		"metadata": map[string]any{
			"generateName": "mmpolicy-", "namespace": pod.Namespace,
		},
		"involvedObject": map[string]any{
			"apiVersion": "v1", "kind": "Pod", "namespace": pod.Namespace, "name": pod.Name,
			"uid": pod.UID, "fieldPath": "spec.containers{" + container + "}",
		},
		"message":        "container " + container + " runs without its profile: " + reason.Error(),
		"source":         map[string]any{"component": "mmpolicy-nri", "host": host},
		"firstTimestamp": at, "lastTimestamp": at,
	}
}
