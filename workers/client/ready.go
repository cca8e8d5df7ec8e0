package client

import (
	"context"
	"time"

	"github.com/sluice-serve/sluice/infer"
	workerpb "github.com/sluice-serve/sluice/proto/worker"
)

// readyTimeout bounds the wait for a worker's answer whether a model is ready.
const readyTimeout = 10 * time.Second

// AsksReady says that Ready asks somebody: models that say nothing of their readiness are not asked.
func (v *Version) AsksReady() bool {
	for _, g := range v.groups {
		if s, _ := g.asked(); s != nil {
			return true
		}
	}
	return false
}

// Ready asks the version's instances whether they are ready; nil: all of those that are in service are.
func (v *Version) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return v.each(func(g *group) error { return g.ready(ctx) })
}

// asked is where the group is to be asked; nil: nowhere.
func (g *group) asked() (s *session, handle uint64) {
	g.worker.mu.Lock()
	defer g.worker.mu.Unlock()
	if !g.asks || g.gone {
		return nil, 0
	}
	return g.session, g.handle
}

func (g *group) ready(ctx context.Context) error {
	s, handle := g.asked()
	if s == nil {
		return nil
	}
	m, err := s.client.Ready(ctx, &workerpb.ReadyRequest{Handle: handle})
	switch {
	case err != nil:
		return fromStatus(err)
	case m.GetReason() != "":
		return infer.Refusef(infer.Unavailable, infer.ReasonNotReady, "%s", m.GetReason())
	}
	return nil
}
