package repository

import (
	"errors"
	"testing"
)

// Models that say themselves whether they are ready are asked by what asks now, and by nothing else;
// ensembles are as ready as what they need.
func TestReadyNow(t *testing.T) {
	w := &fakeWorkers{}
	r, _ := explicit(t, w, Config{Startup: []string{"*"}, StrictReadiness: true}, map[string]string{
		"m/config.pbtxt": identity, "m/1/": "", "n/config.pbtxt": identity, "n/1/": "",
		"e/config.pbtxt": passing("m", "-1"), "e/1/": ""})
	check := func(when string, server bool, want map[string]bool) {
		t.Helper()
		if got := r.ServerReadyNow(t.Context()); got != server {
			t.Errorf("%s: the server is ready: %v", when, got)
		}
		for name, want := range want {
			if got, err := r.ModelReadyNow(t.Context(), name, ""); got != want || err != nil {
				t.Errorf("%s: %s is ready: %v, %v", when, name, got, err)
			}
			if got, err := r.ModelReady(name, ""); !got || err != nil {
				t.Errorf("%s: %s is ready without being asked: %v, %v", when, name, got, err)
			}
		}
	}
	check("nobody to ask", true, map[string]bool{"m": true, "n": true, "e": true})
	var answer error
	w.loaded["m/1"].ready = func() error { return answer }
	check("ready", true, map[string]bool{"m": true, "n": true, "e": true})
	answer = errors.New("not yet")
	check("not ready", false, map[string]bool{"m": false, "n": true, "e": false})
	if !r.Ready() {
		t.Error("Ready has asked")
	}
}
