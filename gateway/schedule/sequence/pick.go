package sequence

import (
	"bytes"

	"github.com/sluice-serve/sluice/gateway/schedule/internal/queue"
)

// direct picks the batch of an instance: row by row the next requests of the sequences
// that have its slots, up to the last row that has one. Requests of other shapes than
// the one that waits longest stay for the next batch, and one that lost its worker goes
// alone, so that a request that ends workers is known by its second one.
func (c *Core) direct(i int, now int64, batch []*queue.Entry) []*queue.Entry {
	lead := c.lead(i)
	if lead == nil {
		return batch
	}
	ready, last := 0, 0
	for row, s := range c.slots[i] {
		if c.joins(s, lead) {
			ready++
			last = row
		}
	}
	if lead.Losses == 0 && c.delay > 0 && float64(ready) < c.utilization*float64(c.rules.slots) && now < lead.At+c.delay {
		c.wait(lead.At + c.delay)
		return batch
	}
	for row := 0; row <= last; row++ {
		s := c.slots[i][row]
		if !c.joins(s, lead) {
			batch = append(batch, c.null)
			continue
		}
		e := s.line.First()
		c.start(e)
		batch = append(batch, e)
	}
	return batch
}

// lead is the request that an instance's next batch is made for.
func (c *Core) lead(i int) *queue.Entry {
	var lead *queue.Entry
	for _, s := range c.slots[i] {
		if s == nil || s.line.Len() == 0 || s.busy != nil {
			continue
		}
		e := s.line.First()
		if e.Losses > 0 {
			return e
		}
		if lead == nil || e.At < lead.At {
			lead = e
		}
	}
	return lead
}

func (c *Core) joins(s *sequence, lead *queue.Entry) bool {
	if s == nil || s.busy != nil {
		return false
	}
	e := s.line.First()
	return e == lead || e != nil && lead.Losses == 0 && e.Losses == 0 && bytes.Equal(e.Key, lead.Key)
}

// oldest picks the batch of an instance from the next requests of its candidates.
func (c *Core) oldest(i int, now int64, batch []*queue.Entry) []*queue.Entry {
	head := c.heads[i].First()
	if head == nil {
		return batch
	}
	n := 1
	if head.Losses == 0 {
		var wake int64
		if n, wake = c.cutters[i].Cut(head, now); n == 0 {
			c.wait(wake)
		}
	}
	for range n {
		e := c.heads[i].First()
		c.start(e)
		batch = append(batch, e)
	}
	return batch
}
