package pipeline

import (
	"testing"

	"github.com/sluice-serve/sluice/infer"
)

func TestTarget(t *testing.T) {
	for _, c := range []struct {
		name, target             string
		action                   infer.Action
		path, version            string // what the path says
		message, messageVersion  string // what the message says
		model, want, wantVersion string // of the envelope, then of the request
	}{
		{"none", "", infer.ActionInference, "m", "1", "m", "1", "m", "m", "1"},
		{"path", "n/2", infer.ActionInference, "m", "1", "m", "1", "n", "n", "2"},
		{"path without version", "n", infer.ActionInference, "m", "1", "m", "1", "n", "n", "1"},
		{"message", "n/2", infer.ActionInference, "", "", "m", "", "", "n", "2"},
		{"no inference", "n/2", infer.ActionMetadata, "m", "1", "m", "1", "m", "m", "1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := &infer.Envelope{Action: c.action, Model: c.path, Version: c.version, Header: func(key string) string {
				if key == TargetHeader {
					return c.target
				}
				return ""
			}}
			retarget(env)
			req := &infer.Request{Model: c.message, Version: c.messageVersion, Envelope: env}
			aim(req)
			if env.Model != c.model || req.Model != c.want || req.Version != c.wantVersion {
				t.Errorf("envelope %q, request %q/%q; want %q, %q/%q", env.Model, req.Model, req.Version, c.model, c.want, c.wantVersion)
			}
		})
	}
}
