package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestCommands(t *testing.T) {
	for _, row := range []struct {
		args           []string
		status         int
		stdout, stderr string // what must be in them; "" for nothing at all
	}{
		{[]string{"version"}, 0, "sluice ", ""},
		{[]string{"--version"}, 0, "sluice ", ""},
		{[]string{"help"}, 0, "Usage:", ""},
		{[]string{"serve", "--help"}, 0, "--model-repository", ""},
		{[]string{"check", "-h"}, 0, "Usage: sluice check", ""},
		{[]string{"models", "--help"}, 0, "Usage: sluice models", ""},
		{[]string{"models", "lost"}, 2, "", "sluice: no command 'models lost'; did you mean 'list'?\n"},
		{[]string{"models", "list", "--url=127.0.0.1:1"}, 3, "", "sluice: no answer from http://127.0.0.1:1: "},
		{[]string{"health", "--help"}, 0, "Usage: sluice health", ""},
		{[]string{"health", "--url=127.0.0.1:1"}, 1, "", "sluice: no answer from 127.0.0.1:1: "},
		{nil, 1, "", "sluice: give a command: serve, check, engines, models, keys, policy, health, xds or version\n"},
		{[]string{"sevre"}, 1, "", "sluice: no command 'sevre'; did you mean 'serve'?\n"},
		{[]string{"frobnicate"}, 1, "", "sluice: no command 'frobnicate'\n"},
		{[]string{"--model-repository=/m"}, 1, "", "sluice: the command comes before the flags: sluice serve --model-repository=/m\n"},
	} {
		var stdout, stderr bytes.Buffer
		status := run(t.Context(), row.args, &stdout, &stderr)
		if status != row.status || !fits(stdout.String(), row.stdout) || !fits(stderr.String(), row.stderr) {
			t.Errorf("%q: got %d, stdout %q, stderr %q; want %d, %q, %q", row.args, status, &stdout, &stderr, row.status, row.stdout, row.stderr)
		}
	}
}

func fits(got, want string) bool {
	return want == "" && got == "" || want != "" && strings.Contains(got, want)
}
