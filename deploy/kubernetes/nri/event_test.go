// SPDX-License-Identifier: GPL-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestEvent(t *testing.T) {
	var path, token string
	var got map[string]any
	code := http.StatusCreated
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, token = r.URL.Path, r.Header.Get("Authorization")
		json.NewDecoder(r.Body).Decode(&got)
		w.WriteHeader(code)
	}))
	defer api.Close()
	cluster := &Cluster{api.URL, func() (string, error) { return "secret", nil }, api.Client()}
	reason := fmt.Errorf("%w: the host has no profile %q", errNoProfile, "wbe")
	if err := cluster.post(Pod{"prod", "shop", "u1"}, "web", reason); err != nil {
		t.Fatal(err)
	}
	about := got["involvedObject"].(map[string]any)
	for _, test := range []struct{ got, want any }{
		{path, "/api/v1/namespaces/prod/events"},
		{token, "Bearer secret"},
		{got["type"], "Warning"},
		{got["message"], `container web runs without its profile: unknown_profile: the host has no profile "wbe"`},
		{about["name"], "shop"},
		{about["uid"], "u1"},
	} {
		if test.got != test.want {
			t.Errorf("%v, not %v", test.got, test.want)
		}
	}
	code = http.StatusForbidden
	if err := cluster.post(Pod{"prod", "shop", "u1"}, "web", reason); err == nil {
		t.Error("a refusal is not told")
	}
}
