package repository

import "github.com/sluice-serve/sluice/proto/inference"

// snapshot is the version's statistics with the memory that its workers say it took
// when it was loaded last.
func (m *Model) snapshot() *inference.ModelStatistics {
	s := m.stats.Snapshot()
	for _, u := range m.Memory() {
		s.MemoryUsage = append(s.MemoryUsage, &inference.MemoryUsage{Type: u.Type, Id: u.Id, ByteSize: uint64(max(u.ByteSize, 0))})
	}
	return s
}
