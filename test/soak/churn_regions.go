package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-serve/sluice/test/checked"
)

const (
	slots    = 4   // requests that use a region at a time
	slotSize = 512 // bytes of a request's input in a region, and of its output
)

// askedInRegion is a request with a region: what came of it.
type askedInRegion struct {
	q       question
	begin   time.Time
	end     time.Time
	version int
	err     error
}

// useRegion registers a region, has requests read and write it, and unregisters it while
// they do. When the call to unregister has returned nothing may write to it any more, and
// what was answered rightly must be there.
func (c *churn) useRegion(m *reloaded) func(*server, *rand.Rand) (exchange, func()) {
	return func(s *server, rng *rand.Rand) (exchange, func()) {
		web, names := s.web(), &serial{}
		return func(ctx context.Context) (err error) {
			r, err := newRegion(names, 2*slots*slotSize)
			if err != nil {
				return err
			}
			defer func() {
				if removed := os.Remove(r.path); err == nil {
					err = removed
				}
			}()
			asked := make([]askedInRegion, slots)
			memory := bytes.Repeat([]byte{0xaa}, 2*slots*slotSize)
			for i := range asked {
				asked[i].q = ask(m, rng)
				copy(memory[i*slotSize:], checked.Raw(asked[i].q.in))
			}
			if err := r.write(memory); err != nil {
				return err
			}
			if _, _, err := checked.Post(ctx, web, s.regionURL(r.name, "register"), registration(r.name, 0, int64(len(memory)))); err != nil {
				return fmt.Errorf("register: %w", err)
			}
			return c.unregisterInUse(ctx, web, m, r, asked, time.Duration(rng.Int64N(int64(5*time.Millisecond))))
		}, web.CloseIdleConnections
	}
}

func (c *churn) unregisterInUse(ctx context.Context, web *http.Client, m *reloaded, r *region, asked []askedInRegion, after time.Duration) error {
	var wg sync.WaitGroup
	for i := range asked {
		wg.Go(func() {
			a := &asked[i]
			a.begin = time.Now()
			var got []byte
			_, got, a.err = checked.Post(ctx, web, c.s.url(a.q.path(m)), a.q.inRegion(r.name, int64(i*slotSize), int64((slots+i)*slotSize)))
			a.end = time.Now()
			var named checked.Answer
			if a.err == nil {
				a.err = json.Unmarshal(got, &named)
				a.version, _ = strconv.Atoi(named.Version) // of an ensemble it is its own
			}
		})
	}
	pause(ctx, after)
	begin := time.Now()
	if _, _, err := checked.Post(ctx, web, c.s.regionURL(r.name, "unregister"), nil); err != nil {
		wg.Wait()
		return fmt.Errorf("unregister: %w", err)
	}
	memory, err := os.ReadFile(r.path)
	wg.Wait()
	if err != nil {
		return err
	}
	for i, a := range asked {
		if a.err != nil {
			if a.end.Before(begin) {
				if err := c.unserved(m, a.err, a.begin, a.end); err != nil {
					return err
				}
			}
			c.notes.add("calls with a region that was unregistered")
			continue
		}
		at := (slots + i) * slotSize
		c.notes.add("answers in regions checked")
		if err := m.check(a.q.in, checked.Numbers(memory[at:at+4*len(a.q.in)]), a.q.version, a.version, a.begin, a.end); err != nil {
			return fmt.Errorf("in a region: %w", err)
		}
	}
	pause(ctx, 20*time.Millisecond)
	later, err := os.ReadFile(r.path)
	if err == nil && !bytes.Equal(memory, later) {
		err = checked.Wrongf("%s: a region was written to after it had been unregistered", m.name)
	}
	return err
}
