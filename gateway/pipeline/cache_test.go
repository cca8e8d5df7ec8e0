package pipeline

import (
	"context"
	"slices"
	"testing"

	"github.com/sluice-serve/sluice/cache"
	"github.com/sluice-serve/sluice/cache/local"
	"github.com/sluice-serve/sluice/infer"
)

// keeping is a model whose answers are kept.
type keeping struct {
	*model
	subject *cache.Subject
}

func (m keeping) Current() *cache.Subject { return m.subject }

type keepers struct {
	models
	keeping keeping
}

// keep is a pipeline of one model whose answers are kept in a level.
func keep(m *model, level cache.Level) *Pipeline {
	k := keepers{models{m}, keeping{m, &cache.Subject{Model: "m", Version: "1", Load: 1}}}
	return New(Config{}, Deps{Models: k, Cache: cache.NewStep(level, nil)})
}

func (m keepers) Acquire(context.Context, string, string) (Model, error) { return m.keeping, nil }

// The cache stands behind validation and before the queue, and what it keeps is the
// backend's view: each answer is presented, and each caller gets the classes he asked for.
func TestCacheStandsBeforeTheQueue(t *testing.T) {
	m := &model{}
	p := keep(m, local.New(local.Config{Size: 1 << 20}))
	for i, c := range []struct {
		classes int64
		want    infer.CacheStatus
		steps   []string
	}{
		{1, infer.CacheMiss, []string{"validate", "do", "present", "done", "release"}},
		{2, infer.CacheHit, []string{"validate", "present", "done", "release"}},
		{0, infer.CacheHit, []string{"validate", "present", "done", "release"}},
	} {
		m.steps = nil
		req := &infer.Request{Model: "m", Outputs: []infer.RequestedOutput{{Name: "scores", Classification: c.classes}}}
		err := carry(t.Context(), p, req, func(r *infer.Response) error {
			defer r.Memory.Release()
			if r.Cache != c.want {
				t.Errorf("answer %d: %v, want %v", i, r.Cache, c.want)
			}
			if out := r.Outputs[0]; c.classes > 0 && (out.Datatype != infer.Bytes || out.Shape[1] != c.classes) || c.classes == 0 && out.Datatype != infer.FP32 {
				t.Errorf("answer %d: %+v", i, out)
			}
			return nil
		})
		if err != nil || !slices.Equal(m.steps, c.steps) {
			t.Errorf("answer %d: %v, steps %q, want %q", i, err, m.steps, c.steps)
		}
	}
	if m.freed != 1 {
		t.Errorf("memory freed %d times", m.freed)
	}
}

// A model without response_cache, and one that was never asked for it, pass by.
func TestWithoutCache(t *testing.T) {
	m := &model{}
	p := New(Config{}, Deps{Models: models{m}, Cache: cache.NewStep(local.New(local.Config{Size: 1 << 20}), nil)})
	for range 2 {
		err := carry(t.Context(), p, &infer.Request{Model: "m"}, func(r *infer.Response) error {
			defer r.Memory.Release()
			if r.Cache != infer.CacheNone {
				t.Errorf("status %v", r.Cache)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if m.freed != 2 {
		t.Errorf("%d executions, want 2", m.freed)
	}
}
