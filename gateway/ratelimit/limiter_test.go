package ratelimit

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	"github.com/sluice-serve/sluice/gateway/schedule"
	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/modelconfig"
)

var _ schedule.Limiter = (*Member)(nil)

func TestInstances(t *testing.T) {
	cfg := &modelconfig.ModelConfig{}
	text := `instance_group { kind: KIND_CPU count: 2 rate_limiter { resources [ { name: "R" count: 3 }, { name: "G" global: true count: 1 } ] } }
		instance_group { kind: KIND_GPU count: 1 gpus: [ 1, 3 ] rate_limiter { resources { name: "R" count: 1 } priority: 2 } }
		instance_group { kind: KIND_CPU count: 1 }`
	if err := prototext.Unmarshal([]byte(text), cfg); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(Instances(cfg))
	if want := "[{[{R 3 0} {G 1 -2}] 0} {[{R 3 0} {G 1 -2}] 0} {[{R 1 1}] 2} {[{R 1 3}] 2} {[] 0}]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestRefusedLoadLeavesNothing(t *testing.T) {
	l := New([]Resource{{Name: "R", Count: 1, Device: Every}})
	_, err := l.Register([]Instance{{Needs: []Need{{"R", 1, 0}}}, {Needs: []Need{{"R", 2, 0}}}}, nil)
	if err == nil || infer.CodeOf(err) != infer.InvalidArg {
		t.Errorf("got %v, want InvalidArg", err)
	}
	if len(l.m.shares)+len(l.m.pools) > 0 {
		t.Error("something is left of a refused model")
	}
}

// TestAfterClose has a batch end when its model is gone already.
func TestAfterClose(t *testing.T) {
	l := New(nil)
	told := 0
	a, errA := l.Register([]Instance{{Needs: []Need{{"R", 1, 0}}}}, func(int) { t.Error("a was told") })
	b, errB := l.Register([]Instance{{Needs: []Need{{"R", 1, 0}}}}, func(int) { told++ })
	if errA != nil || errB != nil {
		t.Fatal(errA, errB)
	}
	if !a.Want(0) || b.Want(0) {
		t.Fatal("a begins, b waits")
	}
	a.Close()
	a.Close()
	if told != 1 || !b.Accept(0) || b.Accept(0) {
		t.Errorf("b was told %d times", told)
	}
	if a.Done(0, true) || a.Want(0) {
		t.Error("a closed member was granted something")
	}
	b.Close()
}
