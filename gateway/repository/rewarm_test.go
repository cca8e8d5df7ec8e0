package repository

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-serve/sluice/infer"
	configpb "github.com/sluice-serve/sluice/proto/modelconfig"
)

// An instance that comes back serves once it is warm, and not at all where it went down
// meanwhile or the version is being unloaded.
func TestInstancesThatComeBackAreWarmedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &VersionPlan{Spec: LoadSpec{Name: "m", Version: 1, Config: &configpb.ModelConfig{Name: "m"}, Instances: make([]InstanceSpec, 2)}}
		m := newModel(v, func() {})
		s := &fakeScheduler{up: map[int]bool{0: true, 1: true}}
		m.setScheduler(s)
		e := &warmExecutor{}
		other := &warmExecutor{}
		r := New(Config{}, deps(&fakeWorkers{}))
		r.keepWarm(t.Context(), m, []sample{{name: "s", size: 1, count: 2}}, []infer.Executor{e, other})
		state := func() bool {
			synctest.Wait()
			s.mu.Lock()
			defer s.mu.Unlock()
			_, up := m.Instances()
			if s.up[0] != (up == 2) || !s.up[1] {
				t.Errorf("the scheduler has %v, the model %d instances", s.up, up)
			}
			return s.up[0]
		}
		ran := func() int {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.batches)
		}
		end := func() { e.batches[len(e.batches)-1].Deliver(&infer.Result{}) }

		m.instanceChanged(0, false)
		m.instanceChanged(0, true)
		m.instanceChanged(0, true)
		if state() || ran() != 1 {
			t.Fatalf("%d batches, want one, and the instance down", ran())
		}
		end()
		if state() || ran() != 2 {
			t.Fatalf("%d batches, want two, and the instance down", ran())
		}
		end()
		if !state() {
			t.Fatal("the instance is warm and not up")
		}

		m.instanceChanged(0, false)
		m.instanceChanged(0, true)
		synctest.Wait()
		m.instanceChanged(0, false) // in the midst of it
		if state() || e.cancels != 1 {
			t.Fatalf("%d cancellations, want one, and the instance down", e.cancels)
		}
		m.instanceChanged(0, true)
		synctest.Wait()
		end()
		synctest.Wait()
		e.batches[len(e.batches)-1].Deliver(&infer.Result{Err: infer.Errorf(infer.Internal, "cold")})
		if !state() || ran() != 5 {
			t.Fatalf("%d batches, want five; a sample that fails now keeps no instance down", ran())
		}

		m.instanceChanged(0, false)
		m.instanceChanged(0, true)
		synctest.Wait()
		m.stopWarming()
		m.instanceChanged(0, false)
		m.instanceChanged(0, true)
		if state() || len(other.batches) != 0 {
			t.Error("an instance came up after the end")
		}
	})
}

// lateExecutor ends a batch when it is cancelled, and not before.
type lateExecutor struct{ warmExecutor }

func (e *lateExecutor) Cancel(b *infer.Batch, _ int) {
	b.Deliver(&infer.Result{Err: infer.Errorf(infer.Cancelled, "cancelled")})
}

// An instance that comes back and does not get warm in time serves, once its batch has ended.
func TestInstanceThatComesBackIsWarmedUpForABoundedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &VersionPlan{Spec: LoadSpec{Name: "m", Version: 1, Config: &configpb.ModelConfig{Name: "m"}, Instances: make([]InstanceSpec, 1)}}
		m := newModel(v, func() {})
		m.setScheduler(&fakeScheduler{up: map[int]bool{0: true}})
		e := &lateExecutor{}
		New(Config{WarmupTime: time.Minute}, deps(&fakeWorkers{})).keepWarm(t.Context(), m, []sample{{name: "s", size: 1, count: 2}}, []infer.Executor{e})
		m.instanceChanged(0, false)
		m.instanceChanged(0, true)
		up := func() int { synctest.Wait(); _, n := m.Instances(); return n }
		time.Sleep(time.Minute - 1)
		if n := up(); n != 0 {
			t.Errorf("%d instances before the time is over, want none", n)
		}
		time.Sleep(1)
		if n := up(); n != 1 || len(e.batches) != 1 {
			t.Errorf("%d instances after %d batches, want one after one", n, len(e.batches))
		}
		m.stopWarming()
	})
}
