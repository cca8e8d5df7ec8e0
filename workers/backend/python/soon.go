package python

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/sluice-serve/sluice/workers/backend/python/internal/channel"
)

// mostDelayed bounds the replies that wait for room in ring 1, in bytes. A process that asks for more without reading
// is killed.
const mostDelayed = 64 << 20

// delayed are replies that the goroutine which reads ring 3 has given while ring 1 had no room. That goroutine must not
// wait: the process may wait for room in ring 3 meanwhile, with no thread that reads ring 1.
type delayed struct {
	mu    sync.Mutex
	queue []delayedReply // guarded by mu: in their order
	bytes int            // guarded by mu: of queue
	busy  bool           // guarded by mu: a goroutine writes them
}

type delayedReply struct {
	id   uint64
	body []byte
}

// replySoon is reply for the goroutine that reads ring 3: it never waits for room. ErrCorrupt: too much waits already.
func (r *run) replySoon(id uint64, body []byte) error {
	d := &r.delayed
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.busy {
		if done, err := r.replies.TryWrite(channel.Reply, id, body); done || err != nil {
			return err
		}
	}
	if d.bytes += channel.HeaderSize + len(body); d.bytes > mostDelayed {
		return fmt.Errorf("%w: the process has asked for more than %d bytes of replies without reading them",
			channel.ErrCorrupt, mostDelayed)
	}
	d.queue = append(d.queue, delayedReply{id, slices.Clone(body)})
	if !d.busy {
		d.busy = true
		r.users.Go(r.writeDelayed)
	}
	return nil
}

// writeDelayed writes the delayed replies until there are none.
func (r *run) writeDelayed() {
	d := &r.delayed
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.queue) > 0 {
		next := d.queue
		d.queue, d.bytes = nil, 0
		d.mu.Unlock()
		for _, a := range next {
			if err := r.reply(a.id, a.body); err != nil && !errors.Is(err, channel.ErrClosed) {
				r.log.Error("a reply could not be given to the model", "error", err)
			}
		}
		d.mu.Lock()
	}
	d.busy = false
}
