package tracing

// sampler decides which request is sampled: every rate'th, until left is used up. It is
// plain state; its owner serializes the calls.
// Source: TraceSetting::SampleTrace of the original.
type sampler struct {
	rate  uint32
	left  int32 // -1: no bound
	seen  uint64
	begun uint64 // sampled
	ended uint64 // of them, handed over or lost
}

// next counts a request and says whether it is sampled.
func (s *sampler) next() bool {
	if s.rate == 0 || s.left == 0 {
		return false
	}
	s.seen++
	if s.seen%uint64(s.rate) != 0 {
		return false
	}
	if s.left > 0 {
		s.left--
	}
	s.begun++
	return true
}

// end counts a sampled request that is over.
func (s *sampler) end() { s.ended++ }

// exhausted says that a bounded count is used up and all of it has ended.
func (s *sampler) exhausted() bool { return s.left == 0 && s.begun > 0 && s.idle() }

// idle says that no sampled request is under way.
func (s *sampler) idle() bool { return s.ended == s.begun }
