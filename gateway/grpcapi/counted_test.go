package grpcapi

import (
	"testing"

	"google.golang.org/grpc/mem"

	"github.com/sluice-serve/sluice/infer"
	"github.com/sluice-serve/sluice/proto/inference"
)

// What messages hold on the heap counts until they are freed, whichever way they are made, and is refused where there
// is no room. Outputs that lie elsewhere are not counted again.
func TestMessagesAreCounted(t *testing.T) {
	index := &inference.RepositoryIndexResponse{}
	for range 500 {
		index.Models = append(index.Models, &inference.RepositoryIndexResponse_ModelIndex{Name: "a model with a name", State: "READY"})
	}
	released := 0
	answer := func(whole bool, sizes ...int) func(s *Service) (mem.BufferSlice, error) {
		return func(s *Service) (mem.BufferSlice, error) {
			a, err := s.answerOf(response(func() { released++ }, sizes...), whole)
			return a.parts, err
		}
	}
	unary := func(sizes ...int) func(s *Service) (mem.BufferSlice, error) {
		return func(s *Service) (mem.BufferSlice, error) {
			c := newCall()
			err := s.encode(c, response(func() { released++ }, sizes...))
			return c.reply, err
		}
	}
	for name, c := range map[string]struct {
		make  func(s *Service) (mem.BufferSlice, error)
		least int64 // 0: nothing is counted
	}{
		"unary, small":                {unary(64), 0},
		"unary, one large output":     {unary(600_000), 0},
		"unary, copied outputs":       {unary(8000, 8000, 8000), 24_000},
		"unary, copied and large":     {unary(8000, 600_000, 8000), 16_000},
		"stream, small":               {answer(false, 64), 0},
		"stream, one large output":    {answer(false, 600_000), 0},
		"stream, copied outputs":      {answer(false, 8000, 600_000, 8000), 16_000},
		"stream, out of other memory": {answer(true, 600_000), 600_000},
		"a list":                      {func(s *Service) (mem.BufferSlice, error) { return s.Codec().Marshal(index) }, 10_000},
	} {
		budget := &infer.Budget{Limit: 4 << 20}
		s, err := NewService(ServiceConfig{}, Deps{Bodies: &fakeBodies{}, Responses: budget})
		if err != nil {
			t.Fatal(err)
		}
		parts, err := c.make(s)
		if used := budget.Used(); err != nil || used < c.least || used > 2*c.least+16<<10 || c.least == 0 && used > 0 {
			t.Errorf("%s: %v, %d bytes counted, want at least %d", name, err, used, c.least)
		}
		parts.Free()
		if used := budget.Used(); used != 0 {
			t.Errorf("%s: %d bytes counted after it was freed", name, used)
		}
		budget.Limit = 1 << 10
		before := released
		parts, err = c.make(s)
		if c.least > 0 && infer.ReasonOf(err) != infer.ReasonMemory || c.least == 0 && err != nil || budget.Used() != 0 {
			t.Errorf("%s without room: %v, %d bytes counted", name, err, budget.Used())
		}
		if parts.Free(); name != "a list" && released != before+1 {
			t.Errorf("%s without room: the response's memory was released %d times", name, released-before)
		}
	}
}
