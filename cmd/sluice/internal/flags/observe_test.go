package flags

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-serve/sluice/gateway/accesslog"
	"github.com/sluice-serve/sluice/gateway/pipeline"
)

func nothing(string) (string, bool) { return "", false }

func TestObserveFlags(t *testing.T) {
	s, err := ParseServe([]string{"--model-repository=x", "--access-log=a.log", "--access-log-config=successes=10", "--access-log-config", "slow-ms=5",
		"--response-timings=always", "--metrics-config=principals=7"}, nothing)
	if err != nil {
		t.Fatal(err)
	}
	want := accesslog.DefaultConfig()
	want.File, want.Successes, want.Slow = "a.log", 10, 5*time.Millisecond
	if o := &s.Config.Observe; o.AccessLog != want || o.Timings != pipeline.TimingsAlways || o.Principals != 7 {
		t.Errorf("got %+v", o)
	}
	for flag, says := range map[string]string{
		"--access-log-config=colour=red": "colour", "--access-log-config=slow-ms": "<setting>=<value>", "--response-timings=maybe": "on-request, always or never",
		"--metrics-config=principals=-1": "-1", "--access-log-config=keep=0": "keep",
	} {
		if _, err := ParseServe([]string{"--model-repository=x", flag}, nothing); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want a fault that says %q", flag, err, says)
		}
	}
	if _, err := ParseServe([]string{"--model-repository=x", "--access-log=stdout", "--access-log-config=max-bytes=5"}, nothing); err == nil {
		t.Error("standard output can be moved away")
	}
}
