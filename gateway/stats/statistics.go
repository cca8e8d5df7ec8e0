package stats

import (
	"slices"

	"github.com/sluice-serve/sluice/proto/inference"
)

// Statistics is the version's entry in the answer of the statistics extension: counts
// and nanoseconds since it was loaded. Phases of successes are counted with them;
// those of compute leave cache hits out. A failed execution counts nowhere but in fail.
// Source: message ModelStatistics, proto/inference/grpc_service.proto.
func (m *Model) Statistics() *inference.ModelStatistics {
	success, hits := m.success.Load(), m.hits.Load()
	var failed uint64
	for i := range m.failures {
		failed += m.failures[i].Load()
	}
	computed := success - min(hits, success)
	s := &inference.ModelStatistics{
		Name:           m.name,
		Version:        m.version,
		LastInference:  uint64(m.last.Load()),
		InferenceCount: m.inferred.Load(),
		ExecutionCount: m.executed.Load(),
		InferenceStats: &inference.InferStatistics{
			Success:       duration(success, m.ns[phaseRequest].Load()),
			Fail:          duration(failed, m.failNS.Load()),
			Queue:         duration(success, m.ns[phaseQueue].Load()),
			ComputeInput:  duration(computed, m.ns[phaseInput].Load()),
			ComputeInfer:  duration(computed, m.ns[phaseInfer].Load()),
			ComputeOutput: duration(computed, m.ns[phaseOutput].Load()),
			CacheHit:      duration(hits, m.hitNS.Load()),
			CacheMiss:     duration(m.misses.Load(), m.missNS.Load()),
		},
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	sizes := make([]int, 0, len(m.batches))
	for rows := range m.batches {
		sizes = append(sizes, rows)
	}
	slices.Sort(sizes)
	for _, rows := range sizes {
		b := m.batches[rows]
		s.BatchStats = append(s.BatchStats, &inference.InferBatchStatistics{BatchSize: uint64(rows),
			ComputeInput: duration(b.count, b.input), ComputeInfer: duration(b.count, b.infer),
			ComputeOutput: duration(b.count, b.output)})
	}
	s.MemoryUsage = m.memory
	return s
}

// Snapshot is Statistics under the name that repository.Stats asks for.
func (m *Model) Snapshot() *inference.ModelStatistics { return m.Statistics() }

func duration(count, ns uint64) *inference.StatisticDuration {
	return &inference.StatisticDuration{Count: count, Ns: ns}
}
