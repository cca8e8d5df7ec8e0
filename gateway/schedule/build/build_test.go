package build

import (
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

type nothing struct{}

func (nothing) Execute(*infer.Batch)     {}
func (nothing) Cancel(*infer.Batch, int) {}
func (nothing) Occupied(uint64) bool     { return false }
func (nothing) Place() (string, string)  { return "", "" }

type noSteps struct{ schedule.Steps }

func TestFromConfig(t *testing.T) {
	deps := schedule.Deps{Executors: []infer.Executor{nothing{}}, Clock: schedule.GoClock{}, IDs: new(atomic.Uint64),
		Log: slog.New(slog.DiscardHandler), Steps: noSteps{}}
	for _, c := range []struct{ config, want string }{
		{`name: "m"`, "*direct.Scheduler"},
		{`name: "m" max_batch_size: 8`, "*direct.Scheduler"},
		{`name: "m" max_batch_size: 8 dynamic_batching {}`, "*dynamic.Scheduler"},
		{`name: "m" dynamic_batching {}`, "*direct.Scheduler"},
		{`name: "m" max_batch_size: 8 dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100
			default_queue_policy { max_queue_size: 4 default_timeout_microseconds: 18446744073709551615 } }`, "*dynamic.Scheduler"},
		{`name: "m" max_batch_size: 8 dynamic_batching { preferred_batch_size: 9 }`, "preferred size must be <= max batch size"},
		{`name: "m" max_batch_size: 8 dynamic_batching { preferred_batch_size: 0 }`, "preferred size must be positive"},
		{`name: "m" sequence_batching {}`, "*sequence.Scheduler"},
		{`name: "m" ensemble_scheduling {}`, "*ensemble.Scheduler"},
		{`name: "m" max_batch_size: 8 dynamic_batching { priority_levels: 18446744073709551615 default_priority_level: 2
			priority_queue_policy { key: 1 value { max_queue_size: 3 } } } parameters { key: "priority_fairness" value { string_value: "8" } }`,
			"*dynamic.Scheduler"},
		{`name: "m" max_batch_size: 8 dynamic_batching { default_queue_policy { timeout_action: DELAY } }`, "*dynamic.Scheduler"},
		{`name: "m" max_batch_size: 8 dynamic_batching { priority_levels: 2 default_priority_level: 1 }
			parameters { key: "priority_fairness" value { string_value: "0" } }`, "'priority_fairness' is '0' for m"},
	} {
		cfg := &modelconfig.ModelConfig{}
		if err := prototext.Unmarshal([]byte(c.config), cfg); err != nil {
			t.Fatal(err)
		}
		s, err := FromConfig(cfg, 1, deps)
		got := fmt.Sprintf("%T", s)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: got %s, want %s", c.config, got, c.want)
		}
	}
}

// brokenClock panics where a scheduler is made.
type brokenClock struct{ schedule.GoClock }

func (brokenClock) NewTimer(func()) schedule.Timer { panic("broken: clock") }

// A panic while a scheduler is made is an error of its model.
func TestPanic(t *testing.T) {
	deps := schedule.Deps{Executors: []infer.Executor{nothing{}}, Clock: brokenClock{}, IDs: new(atomic.Uint64),
		Log: slog.New(slog.DiscardHandler)}
	for _, config := range []string{`name: "m"`, `name: "m" max_batch_size: 8 dynamic_batching {}`, `name: "m" sequence_batching {}`} {
		var cfg modelconfig.ModelConfig
		if err := prototext.Unmarshal([]byte(config), &cfg); err != nil {
			t.Fatal(err)
		}
		if s, err := FromConfig(&cfg, 1, deps); s != nil || infer.CodeOf(err) != infer.Internal {
			t.Errorf("%s: got %v, %v", config, s, err)
		}
		working := deps
		working.Clock = schedule.GoClock{}
		s, err := FromConfig(&cfg, 1, working)
		if err != nil || s.Fault() != nil {
			t.Errorf("%s: got %T, %v, with a fault", config, s, err)
		}
	}
}
