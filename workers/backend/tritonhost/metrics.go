//go:build cgo

package tritonhost

// #include "shim.h"
import "C"

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"sync"
	"unsafe"

	"github.com/sluice-serve/sluice/workers/backend"
)

// metrics hands changes of figures on to the gateway. A backend's figures belong to no model: they go through the
// gateway of the model that was loaded first of those that there are, and wait in the library while there is none.
type metrics struct {
	mu     sync.Mutex
	all    []backend.Gateway // guarded by mu: of loaded models
	joined *sync.Cond        // of mu; nil: run has not begun
}

// theMetrics are those of the process, as the library is.
var theMetrics metrics

// join adds a loaded model's gateway.
func (s *metrics) join(ctx context.Context, g backend.Gateway) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, g)
	if s.joined == nil {
		s.joined = sync.NewCond(&s.mu)
		go s.run(context.WithoutCancel(ctx)) // until the process ends, as backends are never closed
	}
	s.joined.Broadcast()
}

// leave takes one away.
func (s *metrics) leave(g backend.Gateway) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := slices.Index(s.all, g); i >= 0 {
		s.all = slices.Delete(s.all, i, i+1)
	}
}

// gateway is the one to tell; it waits for one.
func (s *metrics) gateway() backend.Gateway {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.all) == 0 {
		s.joined.Wait()
	}
	return s.all[0]
}

func (s *metrics) run(ctx context.Context) {
	logged := false
	for {
		c := C.th_metric_wait()
		m := metricOf(c)
		C.th_metric_free(c)
		if err := s.gateway().Metric(ctx, &m); err != nil && !logged {
			logged = true
			slog.Warn("a backend's metric is refused; others may be, too", "metric", m.Family, "error", err)
		}
	}
}

func metricOf(c *C.th_metric) backend.Metric {
	m := backend.Metric{Family: C.GoString(c.family), Help: C.GoString(c.help), Kind: backend.MetricKind(c.kind),
		Change: backend.MetricChange(c.change), Value: float64(c.value)}
	for _, b := range unsafe.Slice(c.buckets, int(c.bucket_count)) {
		m.Buckets = append(m.Buckets, float64(b))
	}
	_ = json.Unmarshal([]byte(C.GoString(c.labels)), &m.Labels) // the library wrote it
	return m
}
